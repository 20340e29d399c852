"""Is each log-prob beside the token it scores? The one check of the index convention that needs no other source.

Two engines that score the same token nearly agree, and neighbours do not. So where the trainer's log-probs fit the
rollout's better after a shift, the importer (or the dump) is off by that many positions.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from timscope.data.importers.base import Findings

LAGS = (-2, -1, 0, 1, 2)
_CAP = 3.0  # nats: one outlier must not decide
_CERTAIN = -0.1  # tokens above this log-prob look alike at every lag
_GAIN, _SHARE, _MIN_TOKENS = 3.0, 0.9, 8
_SAMPLE = 200_000  # tokens a part


class LagTest:
    """L(k) = mean min(|r[i] - t[i-k]|, 3) over a sequence's tokens with t < -0.1, for k in -2..2, as parts stream by.

    r: rollout, t: trainer (old, or in-loss where there is no old). Off by one where the best k is not 0 and
    L(0) / L(k) > 3 in more than 90 % of the sequences.
    """

    def __init__(self) -> None:
        self.tested = 0
        self._best: Counter[int] = Counter()
        self._sums = np.zeros(len(LAGS))
        self._gains: list[float] = []

    def add(self, tokens: dict[str, Any]) -> None:
        """Take a part's token columns (sorted by sequence and position)."""
        rollout = tokens.get("rollout_logprob")
        trainer = tokens.get("old_logprob", tokens.get("loss_logprob"))
        if rollout is None or trainer is None:
            return
        sequence, position = (np.asarray(tokens[name])[:_SAMPLE] for name in ("sequence", "position"))
        r, t = _measured(rollout)[:_SAMPLE], _measured(trainer)[:_SAMPLE]
        names, row = np.unique(sequence, return_inverse=True)
        means, counts = np.full((len(LAGS), len(names)), np.nan), np.zeros((len(LAGS), len(names)))
        for k, lag in enumerate(LAGS):
            a, b = _pairs(len(r), lag)
            near = (sequence[a] == sequence[b]) & (position[a] - position[b] == lag)
            near &= np.isfinite(r[a]) & np.isfinite(t[b]) & (t[b] < _CERTAIN)
            off = np.minimum(np.abs(r[a][near] - t[b][near]), _CAP)
            counts[k] = np.bincount(row[a][near], minlength=len(names))
            with np.errstate(invalid="ignore"):
                means[k] = np.bincount(row[a][near], off, minlength=len(names)) / counts[k]
        self._judge(means[:, counts.min(axis=0) >= _MIN_TOKENS])

    def _judge(self, means: NDArray[np.float64]) -> None:
        if not means.shape[1]:
            return
        self.tested += means.shape[1]
        self._sums += means.sum(axis=1)
        best = means.argmin(axis=0)
        gain = means[LAGS.index(0)] / np.maximum(means.min(axis=0), 1e-12)
        for k, value in zip(best.tolist(), gain.tolist(), strict=True):
            if LAGS[k] and value > _GAIN:
                self._best[LAGS[k]] += 1
                if len(self._gains) < 10_000:
                    self._gains.append(value)

    def note(self, findings: Findings) -> None:
        """Note "off-by-one" where the rule fires."""
        if not self._best:
            return
        lag, count = self._best.most_common(1)[0]
        if count / self.tested <= _SHARE:
            return
        means = self._sums / self.tested
        findings.note(
            "off-by-one", "trainer and rollout log-probs agree only after a shift: kept as the dump has them",
            count, lag=lag, sequences=self.tested, share=round(count / self.tested, 4),
            mean_abs_difference={str(k): round(float(m), 6) for k, m in zip(LAGS, means, strict=True)},
            median_gain=round(float(np.median(self._gains)), 2),
        )  # fmt: skip


def _measured(values: Any) -> NDArray[np.float64]:
    """Values with NaN where they are missing."""
    return np.where(np.ma.getmaskarray(values), np.nan, np.ma.getdata(values))


def _pairs(size: int, lag: int) -> tuple[slice, slice]:
    """Slices a, b with b = a - lag."""
    return slice(max(lag, 0), size + min(lag, 0)), slice(max(-lag, 0), size - max(lag, 0))
