"""One step of a run while it is being gathered: rows of tokens and sequences, gradients, and step metrics.

The caller says things in the order in which a training loop learns them (rollouts first, then what the trainer made of
them), in as many calls as it likes; rows are numbered in the order of `rollout` calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from timscope.loggers.guard import Guard
from timscope.loggers.rows import Rows, clean


class Step:
    """What one optimizer step saw. Made by `Recorder.step`; every method takes lists, numpy arrays or tensors.

    Shapes: B sequences in the call, a response of n_b tokens each. A token column may be ragged (B rows of n_b), padded
    (B, C) in the layout of the `completion_ids` it belongs to, (B, 1) to repeat along the row, or flat (sum of n_b,).
    NaN and None mean "not measured" and are stored as NULL; how many values were NaN is kept as the step metric
    `nan/<column>`.
    """

    def __init__(self, number: int, guard: Guard, rank: int = 0, world_size: int = 1) -> None:
        self.number, self._guard, self._rank = number, guard, rank
        self._rows = Rows(guard, rank, world_size)
        self._metrics: dict[str, float | None] = {}
        self._gradients: list[dict[str, Any]] = []

    def rollout(
        self,
        *,
        prompt_ids: Any,
        completion_ids: Any,
        prompt_mask: Any = None,
        completion_mask: Any = None,
        sequence: Any = None,
        **columns: Any,
    ) -> range:
        """Add sequences as the rollout engine made them; returns their row numbers, for `rows=` later.

        `prompt_ids`, `completion_ids`: ragged, or padded on either side with a mask that is true on real tokens (tool
        results are real tokens; what is in the loss is `mask` of `trainer`). Further columns: `rollout_logprob`,
        `rescore_logprob` (nats, one a token), and one value a sequence or one for all: `weight_version` (a list of
        lists where it changes inside a sequence), `finish_reason`, `prompt`, `completion` (texts), `uid`, `group_id`,
        `turns`. `sequence`: own row numbers, unique over ranks; default 0, 1, ... interleaved by rank.
        """
        start = len(self._rows)
        if self._guard.on("rollout"):
            with self._guard.column("rollout"):
                self._rows.add(prompt_ids, prompt_mask, completion_ids, completion_mask, sequence)
        added = range(start, len(self._rows))
        if added:
            self._rows.take(added, columns)
        return added

    def trainer(self, *, rows: Any = None, **columns: Any) -> None:
        """Say what the trainer computed for `rows` (all by default), in that order: a micro-batch may be permuted.

        Token columns: `old_logprob` (before the update), `loss_logprob` (inside the loss), `ref_logprob`, `entropy`,
        all in nats, `rollout_is_weight` (the correction weight applied) and `mask` (true: in the loss; without it every
        response token counts). Sequence columns: `micro_batch`, `pad_left`, `pad_right`.
        """
        self._take(rows, columns)

    def scores(self, *, rows: Any = None, rewards: Mapping[str, Any] | None = None, **columns: Any) -> None:
        """Rewards and advantages of `rows`.

        `reward` (B,); `advantage` (B,) or, where it varies inside a sequence, a token column; `rewards`: by reward
        function, each (B,), stored as `reward/<function>`.
        """
        self._take(rows, {**columns, **{f"reward/{name}": values for name, values in (rewards or {}).items()}})

    def gradients(self, groups: Mapping[str, Any]) -> None:
        """Gradients before clipping, by parameter group: an L2 norm, or a mapping with `norm`, `max_abs`,
        `zero_share`, `nonfinite`. Rank 0 only; other ranks' calls are ignored."""
        if self._rank or not self._guard.on("gradients"):
            return
        with self._guard.column("gradients"):
            for name, said in groups.items():
                values = dict(said) if isinstance(said, Mapping) else {"norm": said}
                self._gradients.append({"parameter_group": str(name), **{k: float(v) for k, v in values.items()}})

    def metrics(self, values: Mapping[str, Any] | None = None, **named: Any) -> None:
        """Step metrics under their own names: `loss`, `reward`, `grad_norm` (before clipping), `learning_rate`,
        `entropy`, `time_s`, `weight_version` (of the weights being trained), or any other number. Texts are left out.
        Rank 0 only; other ranks' calls are ignored."""
        if self._rank:
            return
        for name, value in {**(values or {}), **named}.items():
            if not self._guard.on(f"steps.{name}") or isinstance(value, str):
                continue
            with self._guard.column(f"steps.{name}"):
                self._metrics[name] = None if value is None else float(value)

    def _take(self, rows: Any, columns: Mapping[str, Any]) -> None:
        if not self._guard.on("rollout") or not self._guard.on("rows"):
            return
        with self._guard.column("rows"):
            chosen = self._rows.choose(rows)
            self._rows.take(chosen, columns)

    def tables(self) -> dict[str, dict[str, Any]]:
        """The step's columns by table, for the writer; a table without rows is empty."""
        return {
            "tokens": self._rows.token_table(),
            "sequences": self._rows.sequence_table(),
            "gradients": self._gradient_table(),
            "steps": self._step_table(),
        }

    def _step_table(self) -> dict[str, Any]:
        if self._rank:
            return {}
        row: dict[str, Any] = {"loss": None, **self._metrics, **{f"nan/{k}": n for k, n in self._rows.nan.items()}}
        if row.get("weight_version") is not None:
            row["weight_version"] = int(row["weight_version"])
        return {name: [clean(value)] for name, value in row.items()}

    def _gradient_table(self) -> dict[str, Any]:
        names = {name: None for row in self._gradients for name in row}
        table = {name: [row.get(name) for row in self._gradients] for name in names}
        if "nonfinite" in table:
            table["nonfinite"] = [None if n is None else int(n) for n in table["nonfinite"]]
        return table
