"""The one definition of every estimator: numpy alone, readable in one sitting, and what all faster code is tested
against.

Conventions, used everywhere in timscope:

- log-probs are in nats, of the sampled token; `left` is usually the rollout engine (r), `right` the trainer (t);
- d = right - left = t - r is the log ratio, w = exp(d) the importance weight; d > 0: the right side gives the token
  more;
- "token mean" pools tokens, "sequence mean" averages per-sequence means, "raw" means no clamp and no truncation,
  "clamped" means the log ratio was clipped to +-20 first, as verl, slime and SkyRL do;
- tokens outside the loss mask, missing values and non-finite values never count (see `pair`), and a sequence without a
  counted token does not exist, so appending fully masked rows changes nothing;
- of no tokens at all every estimator is NaN; an overflow is an honest inf and never a NaN.

Start with `p = pair(left, right, mask, sequence)`, then `k3(p.d)`, or `summarise(p)` for everything under the names
that the SQL uses.
"""

from __future__ import annotations

from timscope.analysis.formulas.differences import (
    exact_equal,
    max_abs,
    mean_abs,
    mean_abs_prob_diff,
    mean_exp_abs,
    pearson,
    rms,
    sequence_mean_abs,
    share_beyond,
)
from timscope.analysis.formulas.divergences import chi2_sequence, chi2_token, excess_exp, k1, k3, k3_reverse
from timscope.analysis.formulas.identity import UnitMean, unit_mean_test
from timscope.analysis.formulas.perplexity import LogPerplexities, log_perplexities
from timscope.analysis.formulas.selection import CLAMP, Pair, pair
from timscope.analysis.formulas.shares import SequenceMoments, Shares, sequence_moments, variance_shares
from timscope.analysis.formulas.sketch import SketchCosine, sketch_cosine, sketch_norm, sketch_vector
from timscope.analysis.formulas.summary import TAUS, summarise, tau_name
from timscope.analysis.formulas.weights import ess, mean_weight

__all__ = [
    "CLAMP",
    "TAUS",
    "LogPerplexities",
    "Pair",
    "SequenceMoments",
    "Shares",
    "SketchCosine",
    "UnitMean",
    "chi2_sequence",
    "chi2_token",
    "ess",
    "exact_equal",
    "excess_exp",
    "k1",
    "k3",
    "k3_reverse",
    "log_perplexities",
    "max_abs",
    "mean_abs",
    "mean_abs_prob_diff",
    "mean_exp_abs",
    "mean_weight",
    "pair",
    "pearson",
    "rms",
    "sequence_mean_abs",
    "sequence_moments",
    "share_beyond",
    "sketch_cosine",
    "sketch_norm",
    "sketch_vector",
    "summarise",
    "tau_name",
    "unit_mean_test",
    "variance_shares",
]
