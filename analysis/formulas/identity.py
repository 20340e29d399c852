"""The master split: is the left column a true log-prob of the tokens that were sampled, under any distribution at all?

For y drawn from the left side and any normalised right side on the same support, E[exp(right - left)] = 1 at every
position, however large the mismatch. A mean weight that is not 1 is therefore a fault of the data (temperature or
truncation on one side, a shift, placeholders), and importance corrections on such data are not legitimate.
Needs raw weights and unfiltered rollouts: dropping sequences by reward or by rejection breaks the identity.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from timscope.analysis.formulas.differences import mean
from timscope.analysis.formulas.selection import FloatArray, Pair
from timscope.analysis.formulas.weights import mean_weight

# A spread this small next to the mean is rounding: without it z would be an accident of the order of additions.
CONSTANT = 1e-12


@dataclass(frozen=True)
class UnitMean:
    """E[w] and how many sequence-clustered standard errors it is from 1; `se` and z are NaN below two sequences."""

    mean: float
    se: float
    z: float
    z_sequence_means: float


def _z(values: FloatArray) -> tuple[float, float]:
    """Standard error of the mean of [M] and mean / se. Values that do not vary give z = 0 if they are 0, else inf."""
    centre = mean(values)
    if values.size < 2 or not np.isfinite(values).all():
        return float("nan"), float("nan")
    se = float(values.std(ddof=1) / np.sqrt(values.size))
    if se > CONSTANT * abs(centre):
        return se, centre / se
    return 0.0, 0.0 if centre == 0 else float(np.copysign(np.inf, centre))


def unit_mean_test(p: Pair) -> UnitMean:
    """Token-mean weight and z of the per-sequence sums s_i = sum_t (w_t - 1) against 0, z = mean(s) sqrt(M) / sd(s).

    Sums, because sum_t (w_t - 1) is a martingale: its mean is 0 at any stopping time, such as an end-of-sequence token
    or a length limit. The mean of per-sequence means (`z_sequence_means`) divides by a length that depends on the same
    tokens and is biased as soon as the two sides disagree about the end token: with p(end) = 0.10 against 0.08 and
    nothing wrong with the data, its expectation is 0.965. It is kept for comparison with reports that use it.
    """
    with np.errstate(over="ignore"):
        excess = p.sums(np.expm1(p.d))
    tokens, sequences = p.left.size, p.sequences
    if not tokens:
        return UnitMean(*[float("nan")] * 4)
    se, z = _z(excess)
    return UnitMean(
        mean=mean_weight(p.d),
        se=se * sequences / tokens,
        z=z,
        z_sequence_means=_z(excess / p.lengths)[1],
    )
