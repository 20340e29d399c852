"""How large the difference is, token by token, before any theory: means, tails, correlation, exact equality."""

from __future__ import annotations

import numpy as np

from timscope.analysis.formulas.selection import FloatArray, Pair


def mean(values: FloatArray) -> float:
    """Plain mean of [N]; NaN of nothing, without numpy's warning; inf stays inf."""
    return float(values.mean()) if values.size else float("nan")


def mean_abs(d: FloatArray) -> float:
    """mean |d|, nats, token mean of [N].

    Equals TRL `sampling/sampling_logp_difference/mean` on one rank, SkyRL
    `policy/rollout_train_logprobs_abs_diff_mean`, tunix `sampler_trainer/logp_diff_mean`, slime
    `train/train_rollout_logprob_abs_diff` under calculate_per_token_loss.
    """
    return mean(np.abs(d))


def sequence_mean_abs(p: Pair) -> float:
    """Mean over sequences of each sequence's mean |d|, nats. slime's `train_rollout_logprob_abs_diff` by default."""
    return mean(p.sums(np.abs(p.d)) / p.lengths)


def max_abs(d: FloatArray) -> float:
    """max |d|, nats. TRL `sampling/sampling_logp_difference/max`, SkyRL `..._abs_diff_max`, tunix `logp_diff_max`."""
    return float(np.abs(d).max()) if d.size else float("nan")


def rms(d: FloatArray) -> float:
    """sqrt(mean d^2), nats. Its square is M2 of M2PO; half of that is the mean of verl's k2."""
    return float(np.sqrt(mean(d * d)))


def share_beyond(d: FloatArray, tau: float) -> float:
    """F(tau) = P(max(w, 1/w) > tau) = P(|d| > log tau), a fraction of tokens; tau > 1. The R3 papers' measure."""
    return mean((np.abs(d) > np.log(tau)).astype(np.float64))


def exact_equal(p: Pair) -> float:
    """Fraction of tokens whose two log-probs are the same number. In float32 data that is bitwise (0.0 equals -0.0)."""
    return mean((p.left == p.right).astype(np.float64))


def mean_exp_abs(d: FloatArray) -> float:
    """mean exp|d|, >= 1. NeMo-RL `token_mult_prob_error` (its alarm: 1.05). inf when some |d| > 709."""
    with np.errstate(over="ignore"):
        return mean(np.exp(np.abs(d)))


def mean_abs_prob_diff(p: Pair) -> float:
    """mean |e^right - e^left|, probability units. verl `training/rollout_probs_diff_mean`, tunix `prob_diff_mean`.

    It hides low-probability tokens: 1e-4 against 1e-6 counts 1e-4 here and 4.6 nats in `mean_abs`.
    """
    # e^max (1 - e^-|d|): the plain subtraction loses all digits where both are near 1.
    return mean(np.exp(np.maximum(p.left, p.right)) * -np.expm1(-np.abs(p.d)))


def pearson(x: FloatArray, y: FloatArray) -> float:
    """Pearson correlation of [N] and [N], two passes; NaN where a side is constant.

    Of probabilities (exp of the log-probs) it equals verl `training/rollout_actor_probs_pearson_corr` and tunix
    `probs_pearson_corr`; of log-probs no framework reports it.
    """
    if not x.size:
        return float("nan")
    x, y = x - x.mean(), y - y.mean()
    scale = np.sqrt((x * x).sum() * (y * y).sum())
    return float((x * y).sum() / scale) if scale > 0 else float("nan")
