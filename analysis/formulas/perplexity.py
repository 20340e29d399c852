"""The log-perplexity family: per sequence first, then over sequences, as verl (`rollout_corr/`) and slime (`mis_`) do.

Fully masked rows do not exist here. verl counts them as log-prob 0, which dilutes every mean below (verl#7771).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from timscope.analysis.formulas.differences import mean
from timscope.analysis.formulas.selection import Pair


@dataclass(frozen=True)
class LogPerplexities:
    """Nats a token, except the perplexities and their ratio. Left is "rollout", right is "training" in verl's names."""

    left_log_ppl: float  # rollout_log_ppl: mean_i of -mean left
    right_log_ppl: float  # training_log_ppl
    left_ppl: float  # rollout_ppl: mean_i of exp(-mean left)
    right_ppl: float  # training_ppl
    log_ppl_diff: float  # mean_i of (mean left - mean right) = -log G_i; positive: the right side is less confident
    log_ppl_abs_diff: float
    log_ppl_diff_max: float
    log_ppl_diff_min: float
    ppl_ratio: float  # mean_i of exp(log_ppl_diff_i): the mean after exp, as verl's code does and its docs do not say


def log_perplexities(p: Pair) -> LogPerplexities:
    """Every member of the family for the sequences of `p`, [N] -> scalars."""
    if not p.left.size:
        return LogPerplexities(*[float("nan")] * 9)
    lengths = p.lengths
    left, right = -p.sums(p.left) / lengths, -p.sums(p.right) / lengths
    difference = -p.sums(p.d) / lengths
    with np.errstate(over="ignore"):
        return LogPerplexities(
            left_log_ppl=mean(left),
            right_log_ppl=mean(right),
            left_ppl=mean(np.exp(left)),
            right_ppl=mean(np.exp(right)),
            log_ppl_diff=mean(difference),
            log_ppl_abs_diff=mean(np.abs(difference)),
            log_ppl_diff_max=float(difference.max()),
            log_ppl_diff_min=float(difference.min()),
            ppl_ratio=mean(np.exp(difference)),
        )
