"""The rows of one step: sequences, their tokens, and the columns said of them so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from timscope.data.schema import SEQUENCES, TOKENS
from timscope.loggers.arrays import Array, id_rows, is_padded, numbers, row_values, token_values
from timscope.loggers.guard import Guard

_KEY = frozenset({"step", "sequence", "position", "token_id", "num_tokens", "rank", "prompt_ids"})
TOKEN_COLUMNS = frozenset(TOKENS.names) - _KEY
# Log-probs that a framework keeps only as a sum over the sequence (RLOO): open columns, nats.
SUM_COLUMNS = frozenset({"old_logprob_sum", "ref_logprob_sum"})
ROW_COLUMNS = (frozenset(SEQUENCES.names) - _KEY) | SUM_COLUMNS


class Rows:
    """Sequences in the order they were added; columns may arrive for any subset of them, in any order."""

    def __init__(self, guard: Guard, rank: int, world_size: int) -> None:
        self._guard, self._rank, self._world = guard, rank, world_size
        self._ids: list[Array] = []  # flat, one array a call of `add`, as are the next two
        self._prompts: list[Array] = []
        self._blocks: list[tuple[int, Array | None]] = []  # first row, selection (B, C)
        self._lengths = np.zeros(0, np.int64)
        self._prompt_lengths = np.zeros(0, np.int64)
        self._sequence: list[int] = []
        self._said: dict[str, list[tuple[Array, Array]]] = {}  # token column -> (rows, flat values) as they came
        self._rows: dict[str, dict[int, Any]] = {}

    def __len__(self) -> int:
        return len(self._lengths)

    def add(self, prompt_ids: Any, prompt_mask: Any, completion_ids: Any, completion_mask: Any, sequence: Any) -> None:
        """Append sequences (see `Step.rollout` for the layouts). ValueError where counts or numbers do not fit."""
        start = len(self)
        prompts, prompt_lengths, _ = id_rows(prompt_ids, prompt_mask)
        ids, lengths, keep = id_rows(completion_ids, completion_mask)
        if len(prompt_lengths) != len(lengths):
            raise ValueError(f"{len(prompt_lengths)} prompts for {len(lengths)} completions")
        default = range(start * self._world + self._rank, (start + len(lengths)) * self._world, self._world)
        said = [int(n) for n in row_values(default if sequence is None else sequence, len(lengths))]
        if len({*self._sequence, *said}) != start + len(lengths):
            raise ValueError("sequence numbers must be unique in a step")
        self._sequence += said
        self._prompts.append(prompts)
        self._ids.append(ids)
        self._blocks.append((start, keep))
        self._lengths = np.concatenate([self._lengths, lengths])
        self._prompt_lengths = np.concatenate([self._prompt_lengths, prompt_lengths])

    def choose(self, rows: Any) -> Array:
        """Row numbers (int64); all rows for None. ValueError outside the range."""
        chosen = np.arange(len(self)) if rows is None else numbers(list(rows) if isinstance(rows, range) else rows)
        chosen = chosen.reshape(-1).astype(np.int64)
        if np.any((chosen < 0) | (chosen >= len(self))):
            raise ValueError(f"rows must lie in 0..{len(self) - 1}")
        return chosen

    def take(self, chosen: Array, columns: Mapping[str, Any]) -> None:
        """Store columns of the chosen rows; each is guarded on its own. None is skipped."""
        for name, values in columns.items():
            if values is None or not self._guard.on(name):
                continue
            with self._guard.column(name):
                if _is_token_column(name, values):
                    flat = self._flat(values, chosen)
                    self._said.setdefault(name, []).append((chosen, flat))
                elif name in ROW_COLUMNS or name.startswith("reward/"):
                    said = row_values(values, len(chosen))
                    self._rows.setdefault(name, {}).update(zip(chosen.tolist(), said, strict=True))
                else:
                    raise ValueError(f"no such column; there are {', '.join(sorted(TOKEN_COLUMNS | ROW_COLUMNS))}")

    def _flat(self, values: Any, chosen: Array) -> Array:
        """The values of the chosen rows one after another."""
        if not is_padded(values):
            return token_values(values, self._lengths[chosen], None)
        firsts = np.array([first for first, _ in self._blocks])
        block = np.searchsorted(firsts, chosen, side="right") - 1
        if len(used := np.unique(block)) <= 1:
            first, keep = self._blocks[int(used[0])] if len(used) else (0, None)
            return token_values(values, self._lengths[chosen], None if keep is None else keep[chosen - first])
        # Rows of several calls, whose paddings differ: one by one.
        parts = [self._flat(values[i : i + 1], chosen[i : i + 1]) for i in range(len(chosen))]
        return np.ma.concatenate(parts)  # type: ignore[no-untyped-call,no-any-return]

    def token_table(self) -> dict[str, Any]:
        """The columns of `tokens`, flat over the rows; empty where there is no row."""
        if not len(self):
            return {}
        total, ends = int(self._lengths.sum()), np.cumsum(self._lengths)
        starts = ends - self._lengths
        within = np.arange(total) - np.repeat(starts, self._lengths)
        table: dict[str, Any] = {
            "sequence": np.repeat(np.array(self._sequence, np.int64), self._lengths),
            "position": within + np.repeat(self._prompt_lengths, self._lengths),
            "token_id": np.concatenate(self._ids),
        }
        if self._guard.on(
            "mask"
        ):  # without a mask every response token is in the loss; of one that is off nothing is known
            table["mask"] = np.ones(total, bool)
        for name, said in self._said.items():
            table[name] = _typed(name, self._spread(said, starts, total))
        return table

    def _spread(self, said: list[tuple[Array, Array]], starts: Array, total: int) -> Array:
        """What was said of some rows as one column over all tokens; the rest is missing."""
        everything = np.arange(len(self))
        if len(said) == 1 and np.array_equal(said[0][0], everything):
            return said[0][1]
        kind = np.result_type(*(flat.dtype for _, flat in said))
        column: Array = np.ma.masked_all(total, kind)  # type: ignore[no-untyped-call]
        for chosen, flat in said:
            lengths = self._lengths[chosen]
            before = np.cumsum(lengths) - lengths
            column[np.arange(len(flat)) + np.repeat(starts[chosen] - before, lengths)] = flat
        return column

    def sequence_table(self) -> dict[str, Any]:
        """The columns of `sequences`, one entry a row; empty where there is no row."""
        if not len(self):
            return {}
        offsets = np.concatenate([[0], np.cumsum(self._prompt_lengths)]).astype(np.int32)
        return {
            "sequence": self._sequence,
            "rank": np.full(len(self), self._rank, np.int32),
            "prompt_ids": pa.ListArray.from_arrays(offsets, np.concatenate(self._prompts)),
            "num_tokens": self._lengths.astype(np.int32),
            **{name: [rows.get(r) for r in range(len(self))] for name, rows in self._rows.items()},
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


def _typed(name: str, flat: Array) -> Array:
    """A token column as the writer wants it."""
    if name == "mask":
        # A row that no call named is not in the loss, and NaN is no yes.
        chosen: Array = np.ma.filled(flat, 0).astype(np.float32) > 0
        return chosen
    if name == "weight_version":
        whole: Array = np.ma.masked_invalid(flat).astype(np.int32)
        return whole
    return flat
