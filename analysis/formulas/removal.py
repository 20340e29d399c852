"""How much of a mismatch goes away when one computation takes over a choice of another, with intervals by sequence.

With target log-probs t, start s and swapped start u: d = t - s is the mismatch before, t - u after, u - s the change.
A share removed of 1 means that nothing is left, 0 that the swap changed nothing, below 0 that it made things worse. A
swap may be the right one and still remove little, where its noise comes out anew in every kernel: `explained`, the
squared correlation of d with the change, and `size`, the variance of the change over that of d, tell such a swap from
one that has nothing to do with the mismatch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from timscope.analysis.formulas.selection import FloatArray

NAN = float("nan")
# Shares below this are not worth a name, however narrow their interval: among thirty swaps one is above 0 by chance.
NOTICEABLE = 0.01


@dataclass(frozen=True)
class Interval:
    """A figure and its 95 % percentile interval over resampled sequences; NaN where fewer than two sequences are."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Removal:
    """Shares as fractions; `moved` (rms of the change) in nats; `equal`: share of tokens with the start's very bits."""

    mean_abs: Interval
    variance: Interval
    explained: Interval
    size: float
    moved: float
    equal: float

    @property
    def state(self) -> str:
        """What can be said of `variance`: nothing (every bit equal), removes, adds, or unresolved.

        The latter: its interval holds 0, or it is below NOTICEABLE.
        """
        if self.equal == 1.0:
            return "nothing"
        if abs(self.variance.value) < NOTICEABLE:
            return "unresolved"
        return "removes" if self.variance.low > 0 else "adds" if self.variance.high < 0 else "unresolved"


def removal(
    target: npt.ArrayLike,
    start: npt.ArrayLike,
    swapped: npt.ArrayLike,
    sequence: npt.ArrayLike,
    resamples: int = 1000,
    seed: int = 0,
) -> Removal:
    """Per-token log-probs [N] of three computations, and the tokens' sequences [N]. All must be finite.

    All shares are NaN where target and start never differ (of the variance: differ by a constant).
    """
    t, s, u = (np.asarray(x, dtype=np.float64) for x in (target, start, swapped))
    if not t.size:
        nothing = Interval(NAN, NAN, NAN)
        return Removal(nothing, nothing, nothing, NAN, NAN, NAN)
    before, after, change = t - s, t - u, u - s
    index = np.unique(np.asarray(sequence), return_inverse=True)[1].reshape(-1)
    products = (before, before**2, after, after**2, change, change**2, before * change)
    columns = (np.ones_like(t), np.abs(before), np.abs(after), *products)
    sums = np.stack([np.bincount(index, weights=c) for c in columns], axis=1)  # [M, 10]
    count = sums.shape[0]
    rng = np.random.default_rng(seed)
    times = resamples if count > 1 else 0
    drawn = rng.multinomial(count, np.full(count, 1 / count), size=times).astype(np.float64)
    values, many = _shares(sums.sum(0)[None]), _shares(drawn @ sums)
    mean_abs, spread, explained = (Interval(float(v[0]), *_bounds(m)) for v, m in zip(values, many, strict=True))
    variance = float(np.var(before))
    size = float(np.var(change)) / variance if variance > 0 else NAN
    same = np.asarray(start) == np.asarray(swapped)
    moved, equal = float(np.sqrt(np.mean(change**2))), float(np.mean(same))
    return Removal(mean_abs, spread, explained, size, moved, equal)


def _shares(sums: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Removed mean |d|, removed variance and explained variance [R] from sums over tokens [R, 10]."""
    n, abs_before, abs_after, b, bb, a, aa, c, cc, bc = sums.T
    with np.errstate(divide="ignore", invalid="ignore"):
        var_before, var_after = bb / n - (b / n) ** 2, aa / n - (a / n) ** 2
        var_change, covariance = cc / n - (c / n) ** 2, bc / n - b * c / n**2
        explained = np.where(cc > 0, covariance**2 / (var_before * var_change), 0.0)
        removed_abs = np.where(abs_before > 0, 1 - abs_after / abs_before, NAN)
        removed_variance = np.where(var_before > 0, 1 - var_after / var_before, NAN)
    return removed_abs, removed_variance, explained


def _bounds(values: FloatArray) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    if not finite.size:
        return NAN, NAN
    low, high = np.percentile(finite, [2.5, 97.5])
    return float(low), float(high)
