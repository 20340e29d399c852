"""How large |d| is for a token of given probability, so that sequences and places can be compared fairly.

Rare tokens differ more than sure ones. What is compared below is |d| against what tokens of the same probability have
in the whole run: by place in the response (different inputs show at its start) and by sequence (outliers).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from timscope.analysis.check.pairs import Floats, Pairs

# Edges of -r, nats.
EDGES = np.array([0.003, 0.03, 0.1, 0.3, 0.7, 1.5, 3.0])
BINS = len(EDGES) + 1
# Places in the response. The first token is left out: expert models peak there without any fault.
EARLY, LATE, LONG = slice(1, 20), 100, 60


@dataclass
class Profile:
    """Counts and sums of |d| by bin of -r: overall, early and late in long responses, and counts by sequence."""

    count: Floats = field(default_factory=lambda: np.zeros(BINS))
    total: Floats = field(default_factory=lambda: np.zeros(BINS))
    early: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros((2, BINS)))
    late: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros((2, BINS)))
    long_sequences: int = 0
    _by_sequence: list[npt.NDArray[np.int64]] = field(default_factory=list)

    def add(self, pairs: Pairs) -> None:
        """One chunk's share."""
        if not len(pairs):
            return
        level = _level(pairs.r)
        distance = np.abs(pairs.y)
        self.count += np.bincount(level, minlength=BINS)
        self.total += np.bincount(level, distance, minlength=BINS)
        number = np.repeat(np.arange(len(pairs.starts)), pairs.lengths)
        counts = np.bincount(number * BINS + level, minlength=len(pairs.starts) * BINS)
        self._by_sequence.append(counts.reshape(-1, BINS))
        long = pairs.lengths >= LONG
        self.long_sequences += int(long.sum())
        if not long.any():
            return
        place = np.arange(len(pairs)) - pairs.starts[number]
        first_late = np.maximum(pairs.lengths - LATE, EARLY.stop)
        first_late[~long] = np.iinfo(np.int64).max
        early = long[number] & (place >= EARLY.start) & (place < EARLY.stop)
        for into, part in ((self.early, early), (self.late, place >= first_late[number])):
            into[0] += np.bincount(level[part], minlength=BINS)
            into[1] += np.bincount(level[part], distance[part], minlength=BINS)

    def expected(self) -> Floats:
        """Mean |d| that each sequence would have if only the probabilities of its tokens mattered, [S]."""
        mean = self.total / np.maximum(self.count, 1)
        counts = np.concatenate(self._by_sequence) if self._by_sequence else np.zeros((0, BINS), np.int64)
        expected: Floats = counts @ mean / np.maximum(counts.sum(1), 1)
        return expected

    def ratio(self) -> float | None:
        """Early |d| over late |d| at equal probabilities: late tokens weighted as the early ones are spread over bins.

        None where fewer than 200 tokens of either kind can be matched.
        """
        (n1, s1), (n0, s0) = self.early, self.late
        both = (n1 > 0) & (n0 >= 5)
        if n1[both].sum() < 200 or n0[both].sum() < 200:
            return None
        expected = float((n1 * s0 / np.maximum(n0, 1))[both].sum())
        return float(s1[both].sum()) / expected if expected > 0 else None


def _level(r: Floats) -> npt.NDArray[np.int64]:
    """Bin of each token, 0 for the surest. A few comparisons are faster than a search."""
    x = r.astype(np.float32)
    level = np.zeros(len(x), np.int8)
    for edge in EDGES:
        level += x < np.float32(-edge)
    return level.astype(np.int64)
