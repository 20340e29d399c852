"""y = r - t by token id: a bias on some ids shows as a mean that the others do not have."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from timscope.analysis.check.pairs import Floats, Pairs
from timscope.analysis.columns import ROLLOUT
from timscope.data import Run


@dataclass
class ByToken:
    """Counts, sums and sums of squares of y over the ids seen so far."""

    _columns: list[Floats] = field(default_factory=lambda: [np.zeros(0), np.zeros(0), np.zeros(0)])

    def add(self, pairs: Pairs) -> None:
        """One chunk's share."""
        known = pairs.token >= 0
        if not known.any():
            return
        ids, y = (pairs.token, pairs.y) if known.all() else (pairs.token[known], pairs.y[known])
        new = [np.bincount(ids, weight).astype(np.float64) for weight in (None, y, y * y)]
        self._columns = [_added(old, more) for old, more in zip(self._columns, new, strict=True)]

    def columns(self) -> tuple[npt.NDArray[np.int64], Floats, Floats, Floats]:
        """ids, counts, mean y and its standard deviation; ids that never occurred are left out."""
        n, s, ss = self._columns
        ids = np.flatnonzero(n)
        mean = s[ids] / n[ids]
        return ids, n[ids], mean, np.sqrt(np.maximum(ss[ids] / n[ids] - mean**2, 0.0))


def _added(a: Floats, b: Floats) -> Floats:
    out = np.zeros(max(len(a), len(b)))
    out[: len(a)] += a
    out[: len(b)] += b
    return out


def contexts(run: Run, trainer: str, ids: list[int]) -> dict[int, int]:
    """In how many different contexts of the loss each id occurs: another context gives other log-probs."""
    frame = run.sql(
        f"SELECT token_id, count(DISTINCT hash({ROLLOUT}, {trainer}))::BIGINT AS n FROM tokens "
        f"WHERE mask AND token_id IN ({', '.join(map(str, ids))}) GROUP BY token_id"
    )
    return dict(frame.iter_rows())
