"""Constants that are log-probs by chance.

A value as ordinary as -1.0 occurs in every column, the more often the coarser it is stored: in bf16 it is one of 150
values between -0.6 and -1.4, and a large mismatch sets some of those tokens half a nat from the other side.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import poisson

from timscope.analysis.check.chunks import Chunk
from timscope.analysis.check.plan import APART, Plan, shifted
from timscope.analysis.columns import ROLLOUT

NEAR = 0.4  # nats around the constant
# Values of a float32 log-softmax often lie on the lattice of their logits.
LATTICE = 2.0**-19
# Chance below which so many tokens at the constant are no accident.
ODDS = 1e-4
_BITS = {"bf16": 7, "fp16": 10}


def neighbours(chunk: Chunk, plan: Plan, left: str, right: str, value: float) -> int:
    """Tokens in the loss whose log-prob is near the constant, not at it, and apart from the other side's."""
    x = chunk.values[left]
    near = np.flatnonzero(chunk.mask & (np.abs(x - np.float32(value)) < NEAR) & (x != np.float32(value)))
    other = shifted(chunk.values[right], chunk, plan.lag if left == ROLLOUT else -plan.lag)
    return int((np.abs(x[near] - other[near]) > APART).sum())


def accident(count: int, around: int, value: float, stored_as: str | None) -> bool:
    """Whether `count` tokens at the constant are what `around` neighbours let expect, given the type of the column."""
    step = LATTICE
    if stored_as in _BITS:
        step = 2.0 ** (math.floor(math.log2(abs(value))) - _BITS[stored_as])
    elif stored_as is not None:
        step = 10.0 ** -int(stored_as.partition("-")[0])
    expected = around / (2 * NEAR) * step
    return float(poisson.sf(count - 1, expected)) > ODDS
