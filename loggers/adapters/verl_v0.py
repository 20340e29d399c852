"""verl's legacy RayPPOTrainer: rows are taken when the actor is about to be updated, metrics when they are logged.

`_update_actor` receives the step's final DataProto. It no longer holds the entropies, nor the response mask as it was
before rejection sampling; `_compute_old_log_prob` still saw both, on the same rows. Rows are taken before the update,
so a step in which training crashes is on disk, if not complete.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from timscope.loggers.adapters.calls import Arguments, watch
from timscope.loggers.adapters.columns import counted, selected
from timscope.loggers.adapters.config import scalars
from timscope.loggers.adapters.session import session
from timscope.loggers.adapters.verl_facts import describe, step_columns
from timscope.loggers.adapters.verl_rows import TOKEN_FIELDS, fill_rows
from timscope.loggers.arrays import numbers
from timscope.loggers.bundle import Step

_open: set[int] = set()  # steps whose metrics have not been logged yet


@dataclass
class Scored:
    """What `_compute_old_log_prob` saw and made: tensors (B, R) of the trainer, held until the update."""

    mask: Any = None
    entropy: Any = None
    old: Any = None

    def same_rows(self, old: Any) -> bool:
        """Whether the batch still holds the very log-probs that were made: then its rows are in that order."""
        if self.old is None or old is None:
            return False
        return self.old is old or np.array_equal(numbers(self.old), numbers(old), equal_nan=True)


def hook_trainer(module: ModuleType) -> None:
    """Hook `verl.trainer.ppo.ray_trainer`."""
    held = Scored()

    def scored(call: Arguments, result: Any) -> None:
        nonlocal held
        output = result[0].batch
        mask = call["batch"].batch.get("response_mask", None)
        held = Scored(mask, output.get("entropys", None), output.get("old_log_probs", None))

    def updating(call: Arguments) -> None:
        nonlocal held
        trainer, seen, held = call["self"], held, Scored()
        recorder = session().open("verl", partial(describe, trainer))
        if recorder is None:
            return
        number = int(trainer.global_steps)
        _finish(below=number)
        _open.add(number)
        step = recorder.begin(number)
        step.metrics(weight_version=number - 1)
        if recorder.guard.on("rollout"):
            with recorder.guard.column("rollout"):
                read_rows(step, call["batch"], seen)

    watch(module.RayPPOTrainer, "_compute_old_log_prob", after=scored)

    def updated(call: Arguments, _result: Any) -> None:
        if (recorder := session().recorder) is not None:
            recorder.begin(int(call["self"].global_steps)).ended = True  # only metrics are still to come

    watch(module.RayPPOTrainer, "_update_actor", before=updating, after=updated)
    watch(module.RayPPOTrainer, "fit", ended=_ended)


def hook_tracking(module: ModuleType) -> None:
    """Hook `verl.utils.tracking`: what the trainer logs for an open step is that step's metrics, and closes it."""

    def logged(call: Arguments, _result: Any) -> None:
        recorder, number = session().recorder, int(call["step"])
        if recorder is not None and number in _open:
            metrics = scalars(call["data"])
            recorder.begin(number).metrics({**metrics, **step_columns(metrics)})
            _finish(below=number + 1)

    watch(module.Tracking, "log", after=logged)


def _finish(below: int) -> None:
    """Complete the open steps with a smaller number."""
    recorder = session().recorder
    for number in sorted(n for n in _open if n < below):
        _open.discard(number)
        if recorder is not None:
            recorder.complete(number)


def _ended() -> None:
    _open.clear()
    session().close()


def read_rows(step: Step, batch: Any, seen: Scored) -> None:
    """Put the rows of a DataProto into `step`.

    Layout: prompts (B, P) padded on the left, responses and every token field (B, R) padded on the right; what is a
    token and what is padding is in `attention_mask` (B, P + R).
    """
    tensors, others = batch.batch, batch.non_tensor_batch
    there, names = numbers(tensors["attention_mask"]).astype(bool), set(tensors.keys())
    width = tensors["prompts"].shape[1]
    response = there[:, width:]
    found = {name: selected(tensors[name], response) for name in TOKEN_FIELDS if name in names}
    found["prompts"] = selected(tensors["prompts"], there[:, :width])
    found["loss_mask"] = found["response_mask"]
    if seen.same_rows(tensors.get("old_log_probs", None)):
        scored = {"loss_mask": seen.mask, "entropy": seen.entropy}
        found |= {name: selected(values, response) for name, values in scored.items() if values is not None}
    if "token_level_scores" in names:
        found["rm_scores"] = selected(tensors["token_level_scores"], response)
    groups = [str(uid) for uid in others["uid"]]
    unknown = [None] * len(groups)
    turns = others.get("__num_turns__")
    fill_rows(
        step,
        found,
        uid=counted(groups),
        group_id=groups,
        versions=(others.get("min_global_steps", unknown), others.get("max_global_steps", unknown)),
        turns=None if turns is None else [int(n) for n in turns],
    )
