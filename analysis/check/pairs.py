"""Which tokens of a chunk are compared: rollout r against trainer t, where both were measured.

A `Plan` says what is compared and what a fault that was already found asks for: once an off-by-one is known, the later
rules judge the shifted pair, because two faults can sit in one run and the first hides the second.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from timscope.analysis.check.chunks import Bools, Chunk
from timscope.analysis.check.plan import Plan, sentinels, shifted, shifted_flags
from timscope.analysis.columns import ROLLOUT

Floats = npt.NDArray[np.float64]

_ROW_BITS, _TOKEN_BITS = 21, 20


def left_out(chunk: Chunk, plan: Plan) -> Bools:
    """Tokens of the sequences that the plan leaves out, [N]."""
    keys = zip(chunk.step[chunk.starts].tolist(), chunk.sequence[chunk.starts].tolist(), strict=True)
    flags = np.fromiter((key in plan.left_out for key in keys), bool, len(chunk.starts))
    return np.asarray(chunk.per_token(flags))


class Pairs:
    """The K tokens of a chunk that are compared. `rows` [K] are their places in the chunk; r, t, H in nats, float64.

    H is the trainer's entropy, NaN where it is missing. `starts` [S] are first tokens of the S sequences that have any,
    `which` [S] the number of each in the chunk.
    """

    def __init__(self, chunk: Chunk, plan: Plan) -> None:
        self.chunk = chunk
        column = plan.trainer
        r = chunk.values[ROLLOUT]
        t = np.full_like(r, np.nan) if column is None else shifted(chunk.values[column], chunk, plan.lag)
        keep = chunk.mask & np.isfinite(r) & np.isfinite(t)
        if column is not None:
            keep &= ~sentinels(chunk, plan, ROLLOUT, column)
            keep &= ~shifted_flags(sentinels(chunk, plan, column, ROLLOUT), chunk, plan.lag)
        if plan.fake_steps:
            keep &= ~np.isin(chunk.step, list(plan.fake_steps))
        if plan.left_out:
            keep &= ~left_out(chunk, plan)
        if plan.token_ids:
            keep &= ~np.isin(chunk.token, plan.token_ids)
        self.keep = keep
        self.rows = np.flatnonzero(keep)
        whole = len(self.rows) == chunk.rows
        entropy = shifted(chunk.values["entropy"], chunk, plan.lag)
        self.r, self.t, self.H = ((x if whole else x[self.rows]).astype(np.float64) for x in (r, t, entropy))
        if plan.scale != 1.0:
            self.r /= plan.scale
        counts = chunk.lengths if whole else chunk.sums(keep).astype(np.int64)
        self.which = np.flatnonzero(counts)
        self.lengths = counts[self.which]
        self.starts = np.cumsum(self.lengths) - self.lengths

    def __len__(self) -> int:
        return len(self.rows)

    def sums(self, values: npt.NDArray[np.generic]) -> Floats:
        """Sum over each sequence, [K] -> [S]."""
        return np.add.reduceat(values, self.starts, dtype=np.float64)

    @cached_property
    def y(self) -> Floats:
        """r - t, nats."""
        return self.r - self.t

    @cached_property
    def token(self) -> npt.NDArray[np.int64]:
        """Token ids; those outside 0..2^20 become -1."""
        ids = self.chunk.token[self.rows].astype(np.int64)
        return np.where((ids >= 0) & (ids < 1 << _TOKEN_BITS), ids, -1)

    @cached_property
    def seen(self) -> Bools:
        """Whether the same id occurred earlier among the compared tokens of the sequence."""
        out = np.zeros(len(self), bool)
        if len(self) >= 1 << _ROW_BITS:  # one giant sequence: nothing of it counts as repeated
            return out
        key = np.repeat(np.arange(len(self.starts)), self.lengths) << (_ROW_BITS + _TOKEN_BITS)
        key |= ((self.token & ((1 << _TOKEN_BITS) - 1)) << _ROW_BITS) | np.arange(len(self))
        key.sort()
        again = key[1:][(key[1:] >> _ROW_BITS) == (key[:-1] >> _ROW_BITS)] & ((1 << _ROW_BITS) - 1)
        out[again] = True
        return out & (self.token >= 0)
