"""KL estimators and chi-square between the two sides. Expectations are over tokens that the left side sampled.

Direction matters: for r = -5 and t = -15 the forward k3 is 9 and the reverse form 22,015 (NeMo-RL docs/guides/grpo.md).
"""

from __future__ import annotations

import numpy as np

from timscope.analysis.formulas.differences import mean
from timscope.analysis.formulas.selection import FloatArray, Pair

# Below this |d| the series is closer to e^d - d - 1 than the subtraction, which loses all digits near |d| = 1e-8.
SERIES_BELOW = 0.03


def excess_exp(d: FloatArray) -> FloatArray:
    """e^d - d - 1 for every token, [N] -> [N], >= 0; exact to about 1e-12 relative for small d too (d^2/2)."""
    series = 1.0 + d / 8
    for n in (7, 6, 5, 4, 3):
        series = 1.0 + d / n * series
    with np.errstate(over="ignore"):
        return np.where(np.abs(d) < SERIES_BELOW, d * d / 2 * series, np.exp(d) - d - 1.0)


def _clamped(d: FloatArray, clamp: float | None) -> FloatArray:
    return d if clamp is None else np.clip(d, -clamp, clamp)


def k1(d: FloatArray) -> float:
    """mean(-d) = mean(left - right), nats: unbiased for KL(left || right), can be negative.

    verl `rollout_corr/kl`, OpenRLHF `train/vllm_kl`; slime `mis_kl` is its sequence mean; AReaL `behave_approx_kl` =
    -k1. Its standard error is sd(d)/sqrt(N), usually far above its value: read `k3` or `mean_abs` first.
    """
    return mean(-d)


def k3(d: FloatArray, clamp: float | None = None) -> float:
    """mean(e^d - d - 1), nats, >= 0: estimates KL(left || right) with low variance.

    verl `rollout_corr/k3_kl` (unclamped), NeMo-RL `gen_kl_error` under its default k3; slime `mis_k3_kl` is the
    sequence mean. Unclamped it is inf once some d > 709; pass clamp=CLAMP for the +-20 convention.
    """
    return mean(excess_exp(_clamped(d, clamp)))


def k3_reverse(d: FloatArray, clamp: float | None = None) -> float:
    """mean(e^-d + d - 1), nats, >= 0. NeMo-RL `policy_kl_error`. On left-sampled tokens not an unbiased KL(right ||
    left).
    """
    return mean(excess_exp(_clamped(-d, clamp)))


def chi2_token(d: FloatArray, clamp: float | None = None) -> float:
    """mean w^2 - 1, the variance of token weights. verl `rollout_corr/chi2_token` with clamp=CLAMP."""
    with np.errstate(over="ignore"):
        return mean(np.expm1(2.0 * _clamped(d, clamp)))


def chi2_sequence(p: Pair, clamp: float | None = None) -> float:
    """mean_i exp(2 sum_i d) - 1 over sequences. verl `rollout_corr/chi2_seq` with clamp=CLAMP (on the sum).

    verl also counts fully masked rows (as weight 1); here they do not exist.
    """
    with np.errstate(over="ignore"):
        return mean(np.expm1(2.0 * _clamped(p.sums(p.d), clamp)))
