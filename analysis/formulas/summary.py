"""Every estimator of a pair of witnesses at once, under the names that the SQL metrics use."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from timscope.analysis.formulas import differences, divergences, weights
from timscope.analysis.formulas.identity import unit_mean_test
from timscope.analysis.formulas.perplexity import log_perplexities
from timscope.analysis.formulas.selection import CLAMP, Pair

TAUS = (1.1, 1.5, 2.0, 3.0, 5.0, 10.0)


def tau_name(tau: float) -> str:
    """Column of F(tau): 1.1 -> "f_1_1", 2 -> "f_2"."""
    return f"f_{tau:g}".replace(".", "_")


def summarise(p: Pair) -> dict[str, float]:
    """All figures of `p`; names and meanings are those of `timscope.analysis.metrics.pair_metrics`."""
    d = p.d
    unit = unit_mean_test(p)
    return {
        "tokens": float(p.left.size),
        "sequences": float(p.sequences),
        "missing_left": float(p.missing_left),
        "missing_right": float(p.missing_right),
        "nonfinite": float(p.nonfinite),
        "mean_abs": differences.mean_abs(d),
        "sequence_mean_abs": differences.sequence_mean_abs(p),
        "max_abs": differences.max_abs(d),
        "rms": differences.rms(d),
        "exact_equal": differences.exact_equal(p),
        "mean_exp_abs": differences.mean_exp_abs(d),
        "mean_abs_prob_diff": differences.mean_abs_prob_diff(p),
        "pearson_probs": differences.pearson(np.exp(p.left), np.exp(p.right)),
        "pearson_logprobs": differences.pearson(p.left, p.right),
        **{tau_name(tau): differences.share_beyond(d, tau) for tau in TAUS},
        "k1": divergences.k1(d),
        "k3": divergences.k3(d),
        "k3_clamped": divergences.k3(d, CLAMP),
        "k3_reverse": divergences.k3_reverse(d),
        "k3_reverse_clamped": divergences.k3_reverse(d, CLAMP),
        "chi2_token": divergences.chi2_token(d),
        "chi2_token_clamped": divergences.chi2_token(d, CLAMP),
        "chi2_sequence": divergences.chi2_sequence(p),
        "chi2_sequence_clamped": divergences.chi2_sequence(p, CLAMP),
        "ess_token": weights.ess(d),
        "ess_sequence": weights.ess(p.sums(d)),
        **asdict(log_perplexities(p)),
        "mean_weight": unit.mean,
        "mean_weight_se": unit.se,
        "mean_weight_z": unit.z,
        "mean_weight_z_sequence_means": unit.z_sequence_means,
    }
