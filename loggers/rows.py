"""The rows of one step: sequences, their tokens, and the columns said of them so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from timscope.data.schema import SEQUENCES, TOKENS
from timscope.loggers.arrays import Array, copied, id_rows, nullable, row_values, token_rows
from timscope.loggers.guard import Guard

_KEY = frozenset({"step", "sequence", "position", "token_id", "num_tokens", "rank", "prompt_ids"})
TOKEN_COLUMNS = frozenset(TOKENS.names) - _KEY
ROW_COLUMNS = frozenset(SEQUENCES.names) - _KEY


class Rows:
    """Sequences in the order they were added; columns may arrive for any subset of them, in any order."""

    def __init__(self, guard: Guard, rank: int, world_size: int) -> None:
        self._guard, self._rank, self._world = guard, rank, world_size
        self._ids: list[Array] = []
        self._prompts: list[Array] = []
        self._keep: list[Array | None] = []
        self._sequence: list[int] = []
        self._tokens: dict[str, dict[int, Array]] = {}
        self._rows: dict[str, dict[int, Any]] = {}
        self.nan: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, prompt_ids: Any, prompt_mask: Any, completion_ids: Any, completion_mask: Any, sequence: Any) -> None:
        """Append sequences (see `Step.rollout` for the layouts). ValueError where counts or numbers do not fit."""
        start = len(self)
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

    def choose(self, rows: Any) -> list[int]:
        """Row numbers as a list; all rows for None. ValueError outside the range."""
        chosen = list(range(len(self))) if rows is None else [int(r) for r in copied(rows).reshape(-1)]
        if any(not 0 <= r < len(self) for r in chosen):
            raise ValueError(f"rows must lie in 0..{len(self) - 1}")
        return chosen

    def take(self, chosen: Sequence[int], columns: Mapping[str, Any]) -> None:
        """Store columns of the chosen rows; each is guarded on its own. None is skipped."""
        for name, values in columns.items():
            if values is None or not self._guard.on(name):
                continue
            with self._guard.column(name):
                if _is_token_column(name, values):
                    self._take_tokens(name, values, chosen)
                elif name in ROW_COLUMNS or name.startswith("reward/"):
                    said = row_values(values, len(chosen))
                    self._rows.setdefault(name, {}).update(zip(chosen, said, strict=True))
                else:
                    raise ValueError(f"no such column; there are {', '.join(sorted(TOKEN_COLUMNS | ROW_COLUMNS))}")

    def _take_tokens(self, name: str, values: Any, chosen: Sequence[int]) -> None:
        arrays = token_rows(values, [len(self._ids[r]) for r in chosen], [self._keep[r] for r in chosen])
        nan = sum(int(np.isnan(a).sum()) for a in arrays if np.issubdtype(a.dtype, np.floating))
        if nan:
            self.nan[name] = self.nan.get(name, 0) + nan
        self._tokens.setdefault(name, {}).update(zip(chosen, arrays, strict=True))

    def token_table(self) -> dict[str, Any]:
        """The columns of `tokens`, flat over the rows; empty where there is no row."""
        if not self._ids:
            return {}
        lengths = [len(ids) for ids in self._ids]
        positions = [len(p) + np.arange(n) for p, n in zip(self._prompts, lengths, strict=True)]
        table: dict[str, Any] = {
            "sequence": np.repeat(np.array(self._sequence, np.int64), lengths),
            "position": np.concatenate(positions),
            "token_id": np.concatenate(self._ids),
            "mask": np.ones(sum(lengths), bool),  # without a mask every response token is in the loss
        }
        ends = np.cumsum(lengths)
        for name, rows in self._tokens.items():
            flat = np.full(sum(lengths), np.nan, np.float64)
            for row, values in rows.items():
                flat[ends[row] - lengths[row] : ends[row]] = values
            table[name] = _typed(name, flat)
        return table

    def sequence_table(self) -> dict[str, Any]:
        """The columns of `sequences`, one entry a row; empty where there is no row."""
        if not self._ids:
            return {}
        return {
            "sequence": self._sequence,
            "rank": [self._rank] * len(self),
            "prompt_ids": [p.tolist() for p in self._prompts],
            "num_tokens": [len(ids) for ids in self._ids],
            **{name: [clean(rows.get(r)) for r in range(len(self))] for name, rows in self._rows.items()},
        }


def _is_token_column(name: str, values: Any) -> bool:
    """`advantage` and `weight_version` live in both tables: one value a token goes to tokens, one a sequence to
    sequences."""
    if name not in ROW_COLUMNS:
        return name in TOKEN_COLUMNS
    if name not in TOKEN_COLUMNS or isinstance(values, str) or np.isscalar(values):
        return False
    if isinstance(values, (list, tuple)):
        return any(getattr(v, "ndim", 0) or isinstance(v, (list, tuple)) for v in values)
    return bool(getattr(values, "ndim", 0) == 2)


def _typed(name: str, flat: Array) -> Any:
    """A token column as the writer wants it; NaN, also of rows that nobody spoke of, becomes missing."""
    if name == "mask":
        return np.nan_to_num(flat, nan=0.0).astype(bool)  # a row that no call named is not in the loss
    if name == "weight_version":
        return np.ma.array(np.nan_to_num(flat, nan=-1).astype(np.int32), mask=np.isnan(flat))
    return nullable(flat)


def clean(value: Any) -> Any:
    """None for NaN."""
    return None if isinstance(value, float) and np.isnan(value) else value
