"""What the shape of the token table says before any value is believed: order, gaps, repeats, ids, signs, versions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from timscope.analysis.check.chunks import NO_INT, Chunk
from timscope.analysis.check.plan import NEVER
from timscope.analysis.check.report import ROWS
from timscope.analysis.columns import LOSS, ROLLOUT, TRAINER

# A log-prob above 0 by less than the first is float noise, by more than the second a finding, between them a note.
FLOAT_NOISE, POSITIVE = 1e-6, 1e-3


@dataclass
class Violations:
    """How often something was seen, and the first rows of it."""

    count: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, chunk: Chunk, where: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> None:
        """`where`: flags [N] or row numbers."""
        rows = np.flatnonzero(where) if where.dtype == bool else where
        self.count += len(rows)
        if len(rows) and len(self.rows) < ROWS:
            self.rows += chunk.where(rows[: ROWS - len(self.rows)])


@dataclass
class Structure:
    """Collects the violations by name, and one row a stretch of a sequence: step, sequence, n, first, last, versions.

    `vocabulary`: ids are below it, None where unknown.
    """

    vocabulary: int | None
    found: dict[str, Violations] = field(default_factory=dict)
    largest_id: int = -1
    tokens: int = 0
    in_loss: int = 0
    without_mask: int = 0
    _parts: list[pl.DataFrame] = field(default_factory=list)

    def add(self, chunk: Chunk) -> None:
        """Look at one chunk."""
        self.tokens += chunk.rows
        self.in_loss += int(chunk.mask.sum())
        self.without_mask += chunk.masked_null
        inner = np.ones(chunk.rows, bool)
        inner[chunk.starts] = False
        gap = np.diff(chunk.position, prepend=chunk.position[:1])
        for name, wrong in (("duplicate", gap == 0), ("out_of_order", gap < 0), ("gap", gap > 1)):
            self._note(name, chunk, inner & wrong)
        self._ids(chunk)
        self._signs(chunk)
        self._lengths(chunk, inner)
        self._versions(chunk, inner)

    def _note(self, name: str, chunk: Chunk, where: npt.NDArray[np.bool_]) -> None:
        if where.any():
            self.found.setdefault(name, Violations()).add(chunk, where)

    def _ids(self, chunk: Chunk) -> None:
        token = chunk.token
        there = token != NO_INT
        if not there.any():
            return
        self.largest_id = max(self.largest_id, int(token.max()))
        self._note("negative_id", chunk, there & (token < 0))
        if self.vocabulary is not None and self.largest_id >= self.vocabulary:
            self._note("id_beyond_vocabulary", chunk, token >= self.vocabulary)
        if not there.all():
            # A log-prob that belongs to no token: the columns are of different lengths.
            self._note("logprob_without_token", chunk, ~there & np.isfinite(chunk.values[ROLLOUT]))

    def _signs(self, chunk: Chunk) -> None:
        for column in (ROLLOUT, TRAINER, LOSS):
            if chunk.null[column] is True:
                continue
            x = chunk.values[column]
            with np.errstate(invalid="ignore"):
                above = chunk.mask & (x > FLOAT_NOISE) & np.isfinite(x)
            if above.any():
                above &= ~np.isin(x, np.array(NEVER, np.float32))  # told as placeholders
                self._note(f"positive:{column}", chunk, above & (x > POSITIVE))
                self._note(f"above_zero:{column}", chunk, above & (x <= POSITIVE))

    def _lengths(self, chunk: Chunk, inner: npt.NDArray[np.bool_]) -> None:
        """One log-prob column ends before the other: NULL on a token in the loss, of a sequence that has the column.

        The first token of a turn may be without one: engines return none there.
        """
        for column in (ROLLOUT, TRAINER, LOSS):
            null = chunk.null[column]
            if not isinstance(null, np.ndarray):
                continue
            short = null & chunk.mask
            has = chunk.sums(~null & chunk.mask) > 0
            turn_start = ~inner
            turn_start[1:] |= ~chunk.mask[:-1]
            self._note(f"shorter:{column}", chunk, short & ~turn_start & chunk.per_token(has))
            self._note(f"turn_start:{column}", chunk, short & turn_start & chunk.per_token(has))

    def _versions(self, chunk: Chunk, inner: npt.NDArray[np.bool_]) -> None:
        frame: dict[str, Any] = {
            "step": chunk.step[chunk.starts].astype(np.int64),
            "sequence": chunk.sequence[chunk.starts].astype(np.int64),
            "n": chunk.lengths,
            "first": chunk.position[chunk.starts].astype(np.int64),
            "last": chunk.position[chunk.starts + chunk.lengths - 1].astype(np.int64),
        }
        newest = np.full(len(chunk.starts), NO_INT, np.int64)
        if chunk.version is not None:
            v = chunk.version
            back = inner & (np.diff(v, prepend=v[:1]) < 0) & (v != NO_INT)
            self._note("version_back_in_sequence", chunk, back)
            newest = np.maximum.reduceat(v, chunk.starts).astype(np.int64)
        self._parts.append(pl.DataFrame({**frame, "newest": newest}))

    def frame(self) -> pl.DataFrame:
        """One row a stretch: step, sequence, n, first, last (positions), newest (version, NO_INT if not recorded)."""
        if self._parts:
            return pl.concat(self._parts)
        names = ("step", "sequence", "n", "first", "last", "newest")
        return pl.DataFrame(schema={name: pl.Int64 for name in names})
