"""Whether the loss mask, or an advantage a token, is shifted against the tokens that the engine sampled.

Only where the columns show it: sequences whose mask has both values, and in which rollout_logprob (or the advantage) is
missing or exactly 0 on some tokens and not on others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from timscope.analysis.check.chunks import Chunk
from timscope.analysis.check.lag_scan import LAGS
from timscope.analysis.check.plan import shifted
from timscope.analysis.columns import ROLLOUT

MIN_GAIN, MIN_SEQUENCES = 3.0, 3


@dataclass
class MaskScan:
    """Disagreements of mask[i] and "column present at i - k", by column and lag, over sequences that can show them."""

    sequences: dict[str, int] = field(default_factory=dict)
    disagreeing: dict[str, int] = field(default_factory=dict)
    by_lag: dict[str, dict[int, float]] = field(default_factory=dict)

    def add(self, chunk: Chunk) -> None:
        """One chunk's share."""
        inside = chunk.sums(chunk.mask)
        mixed = (inside > 0) & (inside < chunk.lengths)
        if not mixed.any():
            return
        for column in (ROLLOUT, "advantage"):
            if chunk.null[column] is True:
                continue
            x = chunk.values[column]
            there = (np.isfinite(x) & (x != 0.0)).astype(np.float32)
            count = chunk.sums(there)
            able = mixed & (count > 0) & (count < chunk.lengths)
            if not able.any():
                continue
            tell = chunk.per_token(able)
            lags = self.by_lag.setdefault(column, dict.fromkeys(LAGS, 0.0))
            for k in LAGS:
                other = shifted(there, chunk, k)
                wrong = tell & np.isfinite(other) & ((other == 1.0) != chunk.mask)
                lags[k] += float(wrong.sum())
                if k == 0:
                    bad = int((chunk.sums(wrong) > 0).sum())
                    self.disagreeing[column] = self.disagreeing.get(column, 0) + bad
            self.sequences[column] = self.sequences.get(column, 0) + int(able.sum())

    def result(self) -> dict[str, Any] | None:
        """None where no column can tell; else `shifted`, and for the worst column `against`, `lag`, counts by lag."""
        found = None
        for column, lags in self.by_lag.items():
            best = min(LAGS, key=lambda k: (lags[k], abs(k)))
            wrong = self.disagreeing[column]
            many = wrong >= MIN_SEQUENCES and 2 * wrong > self.sequences[column]
            off = best != 0 and many and lags[0] > MIN_GAIN * max(lags[best], 1.0)
            entry = {
                "shifted": off,
                "against": column,
                "lag": best,
                "sequences": self.sequences[column],
                "disagreements": {str(k): int(n) for k, n in lags.items()},
            }
            if found is None or (off and not found["shifted"]):
                found = entry
        return found
