"""One step of a run while it is being gathered: rows of tokens and sequences, gradients, and step metrics.

The caller says things in the order in which a training loop learns them (rollouts first, then what the trainer made of
them), in as many calls as it likes; rows are numbered in the order of `rollout` calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from timscope.data.schema import SEQUENCES, TOKENS
from timscope.loggers.arrays import Array, copied, id_rows, nullable, row_values, token_rows
from timscope.loggers.guard import Guard

_KEY = frozenset({"step", "sequence", "position", "token_id", "num_tokens", "rank", "prompt_ids"})
TOKEN_COLUMNS = frozenset(TOKENS.names) - _KEY
ROW_COLUMNS = frozenset(SEQUENCES.names) - _KEY


class Step:
    """What one optimizer step saw. Made by `Recorder.step`; every method takes lists, numpy arrays or tensors.

    Shapes: B sequences in the call, a response of n_b tokens each. A token column may be ragged (B rows of n_b), padded
    (B, C) in the layout of the `completion_ids` it belongs to, (B, 1) to repeat along the row, or flat (sum of n_b,).
    NaN and None mean "not measured" and are stored as NULL; how many values were NaN is kept as the step metric
    `nan/<column>`.
    """

    def __init__(self, number: int, guard: Guard, rank: int = 0, world_size: int = 1) -> None:
        self.number, self._guard, self._rank, self._world = number, guard, rank, world_size
        self._ids: list[Array] = []
        self._prompts: list[Array] = []
        self._keep: list[Array | None] = []
        self._sequence: list[int] = []
        self._tokens: dict[str, dict[int, Array]] = {}
        self._rows: dict[str, dict[int, Any]] = {}
        self._nan: dict[str, int] = {}
        self._steps: dict[str, float | None] = {}
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
        start = len(self._ids)
        if not self._guard.on("rollout"):
            return range(start, start)
        with self._guard.column("rollout"):
            prompts, _ = id_rows(prompt_ids, prompt_mask)
            ids, keep = id_rows(completion_ids, completion_mask)
            if len(prompts) != len(ids):
                raise ValueError(f"{len(prompts)} prompts for {len(ids)} completions")
            default = range(start * self._world + self._rank, (start + len(ids)) * self._world, self._world)
            numbers = [int(n) for n in row_values(default if sequence is None else sequence, len(ids))]
            if len({*self._sequence, *numbers}) != start + len(ids):
                raise ValueError("sequence numbers must be unique in a step")
            self._sequence += numbers
            self._prompts += prompts
            self._ids += ids
            self._keep += [None] * len(ids) if keep is None else list(keep)
        rows = range(start, len(self._ids))
        self._take(rows, columns)
        return rows

    def trainer(self, *, rows: Iterable[int] | Any = None, **columns: Any) -> None:
        """Say what the trainer computed for `rows` (all by default), in that order: a micro-batch may be permuted.

        Token columns: `old_logprob` (before the update), `loss_logprob` (inside the loss), `ref_logprob`, `entropy`,
        all in nats, `rollout_is_weight` (the correction weight applied) and `mask` (true: in the loss; without it every
        response token counts). Sequence columns: `micro_batch`, `pad_left`, `pad_right`.
        """
        self._take(rows, columns)

    def scores(self, *, rows: Iterable[int] | Any = None, rewards: Mapping[str, Any] | None = None, **columns: Any) -> None:
        """Rewards and advantages of `rows`.

        `reward` (B,); `advantage` (B,) or, where it varies inside a sequence, a token column; `rewards`: by reward
        function, each (B,), stored as `reward/<function>`.
        """
        columns.update({f"reward/{name}": values for name, values in (rewards or {}).items()})
        self._take(rows, columns)

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
        `entropy`, `time_s`, `weight_version` (of the weights being trained), or any other number. Values that are no
        number are left out. Rank 0 only; other ranks' calls are ignored."""
        if self._rank:
            return
        for name, value in {**(values or {}), **named}.items():
            if not self._guard.on(f"steps.{name}") or isinstance(value, str):
                continue
            with self._guard.column(f"steps.{name}"):
                self._steps[name] = None if value is None else float(value)

    # --- storing --------------------------------------------------------------------------------------------------

    def _take(self, rows: Any, columns: Mapping[str, Any]) -> None:
        if not self._guard.on("rollout"):
            return
        chosen: list[int] = []
        with self._guard.column("rollout" if rows is None else "rows"):
            chosen = list(range(len(self._ids))) if rows is None else [int(r) for r in copied(rows).reshape(-1)]
            if any(not 0 <= r < len(self._ids) for r in chosen):
                raise ValueError(f"rows must lie in 0..{len(self._ids) - 1}")
        for name, values in columns.items():
            if values is None or not self._guard.on(name):
                continue
            with self._guard.column(name):
                if self._is_token_column(name, values):
                    self._take_tokens(name, values, chosen)
                elif name in ROW_COLUMNS or name.startswith("reward/"):
                    self._rows.setdefault(name, {}).update(zip(chosen, row_values(values, len(chosen)), strict=True))
                else:
                    raise ValueError(f"no such column; sequences take {', '.join(sorted(ROW_COLUMNS))}")

    def _take_tokens(self, name: str, values: Any, chosen: Sequence[int]) -> None:
        lengths = [len(self._ids[r]) for r in chosen]
        arrays = token_rows(values, lengths, [self._keep[r] for r in chosen])
        nan = sum(int(np.isnan(a).sum()) for a in arrays if np.issubdtype(a.dtype, np.floating))
        if nan:
            self._nan[name] = self._nan.get(name, 0) + nan
        self._tokens.setdefault(name, {}).update(zip(chosen, arrays, strict=True))

    @staticmethod
    def _is_token_column(name: str, values: Any) -> bool:
        """`advantage` and `weight_version` live in both tables: a value a token goes to tokens, one a sequence to
        sequences."""
        if name not in ROW_COLUMNS:
            return name in TOKEN_COLUMNS
        if name not in TOKEN_COLUMNS or isinstance(values, str) or np.isscalar(values):
            return False
        if isinstance(values, (list, tuple)):
            return any(getattr(v, "ndim", 0) or isinstance(v, (list, tuple)) for v in values)
        return getattr(values, "ndim", 0) == 2

    # --- reading out ----------------------------------------------------------------------------------------------

    def token_table(self) -> dict[str, Any]:
        """The columns of `tokens`, flat over the rows; empty where no sequence was recorded."""
        if not self._ids:
            return {}
        lengths = [len(ids) for ids in self._ids]
        total = sum(lengths)
        ends = np.cumsum(lengths)
        table: dict[str, Any] = {
            "sequence": np.repeat(np.array(self._sequence, np.int64), lengths),
            "position": np.concatenate([len(p) + np.arange(n) for p, n in zip(self._prompts, lengths, strict=True)]),
            "token_id": np.concatenate(self._ids),
        }
        for name, rows in self._tokens.items():
            flat = np.full(total, np.nan, np.float64)
            for row, values in rows.items():
                flat[ends[row] - lengths[row] : ends[row]] = values
            if name == "mask":
                flat[np.isnan(flat)] = 0.0  # rows that no trainer call named are not in the loss
            table[name] = flat.astype(bool) if name == "mask" else nullable(flat)
        table.setdefault("mask", np.ones(total, bool))
        if "weight_version" in table:
            table["weight_version"] = np.ma.array(
                np.ma.filled(table["weight_version"], -1).astype(np.int32), mask=np.ma.getmaskarray(table["weight_version"])
            )
        return table

    def sequence_table(self) -> dict[str, Any]:
        """The columns of `sequences`, one entry a row."""
        if not self._ids:
            return {}
        count = len(self._ids)
        table: dict[str, Any] = {
            "sequence": self._sequence,
            "rank": [self._rank] * count,
            "prompt_ids": [p.tolist() for p in self._prompts],
            "num_tokens": [len(ids) for ids in self._ids],
        }
        for name, rows in self._rows.items():
            table[name] = [_clean(rows.get(r)) for r in range(count)]
        return table

    def step_table(self) -> dict[str, Any]:
        """The one row of `steps`, or nothing on ranks other than 0."""
        if self._rank:
            return {}
        row: dict[str, Any] = {"loss": None, **self._steps, **{f"nan/{k}": n for k, n in self._nan.items()}}
        if row.get("weight_version") is not None:
            row["weight_version"] = int(row["weight_version"])
        return {name: [_clean(value)] for name, value in row.items()}

    def gradient_table(self) -> dict[str, Any]:
        """The columns of `gradients`."""
        if not self._gradients:
            return {}
        names = {name: None for row in self._gradients for name in row}
        table = {name: [row.get(name) for row in self._gradients] for name in names}
        if "nonfinite" in table:
            table["nonfinite"] = [None if n is None else int(n) for n in table["nonfinite"]]
        return table


def _clean(value: Any) -> Any:
    return None if isinstance(value, float) and np.isnan(value) else value
