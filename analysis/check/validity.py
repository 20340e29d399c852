"""Is r a log-prob of the sampled tokens at all? For one that is, w = exp(t - r) has mean 1 whatever the mismatch.

Two tests, both clustered by sequence, both against Student's bound at the odds of 5 standard errors:

- the mean of w is 1. Weak where w has a heavy tail: behind a shift by one token it is 800 with a z of 2.9.
- the mean of min(w, 4) is at most 1, because min(w, 4) <= w. One-sided, but bounded: behind that shift it is 1.42 with
  a z of 14. (Equality would be wrong to ask of truncated weights.)
"""

from __future__ import annotations

import math

from timscope.analysis.check.semantics import Semantics

# The least distance from 1 that counts, and as a share of mean |d|: in ten million tokens a selection of the rollouts
# (by reward, by length) that no mismatch figure would feel is already certain. Known faults reach 10 %.
MIN_DISTANCE, MIN_SHARE = 1e-4, 0.02


def testable(s: Semantics) -> bool:
    """Whether there is enough to say anything."""
    return s.mean_weight is not None


def capped_too_large(s: Semantics) -> bool:
    """Whether the mean of min(w, 4) is above 1, which no valid r allows."""
    if s.capped_weight is None or s.capped_z is None:
        return False
    return s.capped_z > s.weight_bound and s.capped_weight - 1 > _least(s)


def off_one(s: Semantics) -> bool:
    """Whether the mean of w is not 1."""
    if s.mean_weight is None:
        return False
    z = (s.weight_z or 0.0) if math.isfinite(s.mean_weight) else math.inf
    return abs(z) > s.weight_bound and abs(s.mean_weight - 1) > _least(s)


def invalid(s: Semantics) -> str | None:
    """Why r cannot be what it claims to be, in one line; None where nothing speaks against it."""
    if off_one(s):
        z = (s.weight_z or 0.0) if math.isfinite(s.mean_weight or 0.0) else math.inf
        figure = f"E[w] = {s.mean_weight:.4g} (z = {z:+.0f}) is not 1"
    elif capped_too_large(s):
        figure = f"E[min(w, 4)] = {s.capped_weight:.4g} (z = {s.capped_z:+.0f}) is above 1"
    else:
        return None
    return f"{figure}: rollout_logprob is no log-prob of the sampled tokens"


def _least(s: Semantics) -> float:
    return max(MIN_DISTANCE, MIN_SHARE * (s.mean_abs or 0.0))
