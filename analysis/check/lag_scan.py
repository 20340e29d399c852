"""How well r matches t when it is read one or two tokens earlier or later: per sequence, and in two pieces.

L(k) = mean min(|r[i] - t[i - k]|, 3) over the tokens that tell: those with r < -0.1, since near-certain tokens match at
every lag. Two pieces: lag a before some token, lag b after it, at the split that fits best; an inserted or dropped
token leaves exactly this.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from timscope.analysis.check.chunks import Floats32
from timscope.analysis.check.pairs import Floats, Pairs
from timscope.analysis.check.plan import Plan, shifted
from timscope.analysis.columns import ROLLOUT

LAGS = (-2, -1, 0, 1, 2)
CAP, TELLING = 3.0, -0.1
# Tokens that tell on each side of a split: with 3 a single odd token at an end of a real sequence already looks like
# an insertion, with 4 the largest gain on real data is 1.004.
PIECE = 5
_SPLITS = ((0, 1), (0, -1), (0, 2), (0, -2), (1, 0), (-1, 0))


@dataclass
class LagTable:
    """One row a sequence. `cost[k]` is the sum over telling tokens, `telling` their number; `split_cost` the lowest sum
    in two pieces (inf where neither piece may be formed), `split` the index into the pairs of lags, `split_row` the
    row in the sequence after which the second lag holds."""

    step: npt.NDArray[np.int64]
    sequence: npt.NDArray[np.int64]
    telling: Floats
    cost: dict[int, Floats]
    split_cost: Floats
    split: npt.NDArray[np.int64]

    def lags(self, i: int) -> tuple[int, int]:
        """The two lags of sequence i."""
        return _SPLITS[int(self.split[i])]


@dataclass
class LagScan:
    """Collects the table chunk by chunk."""

    _parts: list[tuple[npt.NDArray[Any], ...]] = field(default_factory=list)

    def add(self, pairs: Pairs, plan: Plan) -> None:
        """Costs of one chunk. `plan.lag` counts as 0 here."""
        if plan.trainer is None or not len(pairs):
            return
        chunk = pairs.chunk
        r = chunk.values[ROLLOUT] if plan.scale == 1.0 else chunk.values[ROLLOUT] / np.float32(plan.scale)
        with np.errstate(invalid="ignore"):
            tells = pairs.keep & (r < TELLING)
        costs = {k: self._cost(r, shifted(chunk.values[plan.trainer], chunk, plan.lag + k), tells) for k in LAGS}
        starts = chunk.starts
        total = {k: np.add.reduceat(c, starts, dtype=np.float64) for k, c in costs.items()}
        count = np.cumsum(tells, dtype=np.int64)
        before = count[starts] - tells[starts]
        number = np.add.reduceat(tells, starts, dtype=np.int64)
        inside = count - chunk.per_token(before)
        allowed = (inside >= PIECE) & (inside <= chunk.per_token(number - PIECE))
        prefix = {k: np.cumsum(c, dtype=np.float64) for k, c in costs.items()}
        found = np.full((len(_SPLITS), len(starts)), np.inf)
        for s, (a, b) in enumerate(_SPLITS):
            difference = prefix[a] - prefix[b]
            base = difference[starts] - (costs[a][starts].astype(np.float64) - costs[b][starts])
            found[s] = np.minimum.reduceat(np.where(allowed, difference, np.inf), starts) - base + total[b]
        split = found.argmin(0)
        step, sequence = chunk.step[starts], chunk.sequence[starts]
        self._parts.append((step, sequence, number, *(total[k] for k in LAGS), found.min(0), split))

    @staticmethod
    def _cost(r: Floats32, t: Floats32, tells: npt.NDArray[np.bool_]) -> Floats32:
        with np.errstate(invalid="ignore"):
            distance = np.abs(r - t)
        # Outside the sequence (NaN) there is nothing to compare: no cost and, for so few tokens, no reward worth the
        # name. fmin takes the cap in place of a NaN.
        cost: Floats32 = np.where(tells & (distance >= 0), np.fmin(distance, np.float32(CAP)), np.float32(0.0))
        return cost

    def table(self) -> LagTable:
        """Everything so far."""
        width = 3 + len(LAGS) + 2
        columns = [np.concatenate([p[i] for p in self._parts] or [np.zeros(0)]) for i in range(width)]
        step, sequence, telling, *rest = columns
        return LagTable(
            step.astype(np.int64),
            sequence.astype(np.int64),
            telling.astype(np.float64),
            dict(zip(LAGS, rest[: len(LAGS)], strict=True)),
            rest[-2],
            rest[-1].astype(np.int64),
        )
