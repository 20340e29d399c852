"""verl's V1 trainer: rows are read from TransferQueue once a step, when the step's metrics have been computed.

By then every field of the step is there and none has been cleared.
"""

from __future__ import annotations

import re
from functools import partial
from types import ModuleType
from typing import Any

from timscope.loggers.adapters.calls import Arguments, watch
from timscope.loggers.adapters.columns import ragged
from timscope.loggers.adapters.config import scalars
from timscope.loggers.adapters.session import session
from timscope.loggers.adapters.verl_facts import describe, step_columns
from timscope.loggers.adapters.verl_rows import TOKEN_FIELDS, fill_rows
from timscope.loggers.arrays import row_values
from timscope.loggers.bundle import Step

_KEY = re.compile(r"(?P<prompt>.+)_\d+_\d+$")  # the prompt's uid, the session, the output of the agent loop


def hook(module: ModuleType) -> None:
    """Hook `verl.trainer.ppo.v1.trainer_base`."""

    def computed(call: Arguments, _result: Any) -> None:
        recorder = session().open("verl", partial(describe, call["self"]))
        if recorder is None:
            return
        number, metrics = int(call["global_steps"]), scalars(call["metrics"])
        step = recorder.begin(number)
        # An update of step n makes version n, so it trains version n - 1 (verl counts staleness the same way).
        step.metrics({**metrics, **step_columns(metrics)}, weight_version=number - 1)
        if recorder.guard.on("rollout"):
            with recorder.guard.column("rollout"):
                read_rows(step, call["batch"], module.tq.kv_batch_get)
        recorder.complete(number)

    watch(module.PPOTrainer, "_compute_metrics", after=computed)
    watch(module.PPOTrainer, "fit", ended=session().close)


def read_rows(step: Step, batch: Any, get: Any) -> None:
    """Fetch the fields of `batch` (a KVBatchMeta: keys, tags, partition_id) with `get` and put its rows into `step`.

    Synthetic rows, with which verl fills a batch up to a multiple, are neither fetched nor recorded.
    """
    real = [(key, tag) for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
    if not real:
        return
    keys, tags = [key for key, _ in real], [tag for _, tag in real]
    wanted = ("prompts", *TOKEN_FIELDS, "num_turns")
    fields = get(keys=keys, partition_id=batch.partition_id, select_fields=list(wanted))
    there = set(fields.keys())
    fill_rows(
        step,
        {name: ragged(fields[name]) for name in wanted if name in there and name != "num_turns"},
        uid=keys,
        group_id=[m["prompt"] if (m := _KEY.match(key)) else None for key in keys],
        versions=([tag.get("min_global_steps") for tag in tags], [tag.get("max_global_steps") for tag in tags]),
        turns=row_values(fields["num_turns"], len(keys)) if "num_turns" in there else None,
    )
