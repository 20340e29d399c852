"""Importance weights: their mean and the effective sample size, raw and in log space.

Frameworks log them after truncation (verl's `rollout_is_eff_sample_size` is 1/mean((u/mean u)^2) of truncated u), which
hides the tail that matters; these are of the raw weights, and no framework reports them.
"""

from __future__ import annotations

import numpy as np

from timscope.analysis.formulas.differences import mean
from timscope.analysis.formulas.selection import FloatArray


def mean_weight(d: FloatArray) -> float:
    """mean w, token mean, raw. slime `train/tis`; NeMo-RL `sampling_importance_ratio` when no correction is set."""
    with np.errstate(over="ignore"):
        return mean(np.exp(d))


def ess(log_weights: FloatArray) -> float:
    """(sum w)^2 / (K sum w^2), in (0, 1], of K log weights: pass d for tokens, per-sequence sums of d for sequences.

    Shifted by the largest log weight, so nothing overflows: one dominating weight gives 1/K.
    """
    if not log_weights.size:
        return float("nan")
    w = np.exp(log_weights - log_weights.max())
    return float(w.sum() ** 2 / (w.size * (w * w).sum()))
