"""An evenly thinned sample of the compared tokens, for quantiles and curves: a million at most, whatever the run."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from timscope.analysis.check.pairs import Floats, Pairs

LIMIT = 1_000_000


@dataclass
class Thinned:
    """Every k-th compared token; k doubles whenever the sample outgrows the limit."""

    limit: int = LIMIT
    stride: int = 1
    _seen: int = 0
    _parts: list[npt.NDArray[np.float64]] = field(default_factory=list)

    def add(self, pairs: Pairs) -> None:
        """Take this chunk's share."""
        first = -self._seen % self.stride
        self._seen += len(pairs)
        some = slice(first, None, self.stride)
        columns = (pairs.r[some], pairs.t[some], pairs.H[some], pairs.seen[some].astype(np.float64))
        self._parts.append(np.stack(columns))
        if sum(p.shape[1] for p in self._parts) > self.limit:
            self._parts = [np.concatenate(self._parts, axis=1)[:, ::2]]
            self.stride *= 2

    def columns(self) -> tuple[Floats, Floats, Floats, npt.NDArray[np.bool_]]:
        """r, t, H (NaN where missing), seen; all [K]."""
        r, t, h, seen = np.concatenate(self._parts, axis=1) if self._parts else np.zeros((4, 0))
        return r, t, h, seen > 0
