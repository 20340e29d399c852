"""Faults put into real columns: each function returns new columns, everything else untouched."""

from __future__ import annotations

from typing import Any

import numpy as np
from recorded import Array, Columns

R, T, H = "rollout_logprob", "old_logprob", "entropy"
_BELOW_ZERO = -1e-5


def shifted(c: Columns, lag: int, column: str = R, sequences: Array | None = None) -> Columns:
    """`column` reads the value `lag` tokens earlier; at the edge it keeps its own. `sequences`: which; default all."""
    x, out = c[column], c[column].copy()
    ends = np.append(c.starts, len(x))
    for i in range(len(ends) - 1) if sequences is None else sequences:
        a, b = ends[i], ends[i + 1]
        if lag > 0:
            out[a + lag : b] = x[a : max(b - lag, a)]
        else:
            out[a : b + lag] = x[min(a - lag, b) : b]
    return c.with_tokens(**{column: out})


def inserted(c: Columns, sequences: Array, at: float = 0.5) -> Columns:
    """From the middle of these sequences on, the rollout's log-probs belong to the token before."""
    x, out = c[R], c[R].copy()
    ends = np.append(c.starts, len(x))
    for i in sequences:
        a, b = ends[i], ends[i + 1]
        j = a + max(1, int(at * (b - a)))
        out[j:b] = x[j - 1 : b - 1]
    return c.with_tokens(**{R: out})


def bf16(x: Array) -> Array:
    """Rounded to bfloat16, to nearest even."""
    bits = x.astype(np.float32).view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return np.asarray((rounded & 0xFFFF0000).view(np.float32))


def rounded(c: Columns, how: str) -> Columns:
    """The rollout's log-probs stored as bf16, fp16 or with so many decimals."""
    x = c[R]
    kinds: dict[str, Any] = {"bf16": bf16, "fp16": lambda v: v.astype(np.float16).astype(np.float32)}
    new = kinds[how](x) if how in kinds else np.round(x.astype(np.float64), int(how)).astype(np.float32)
    return c.with_tokens(**{R: new})


def scaled(c: Columns, factor: float) -> Columns:
    """r in another unit, or divided by a temperature after the softmax."""
    return c.with_tokens(**{R: (c[R] * factor).astype(np.float32)})


def tempered(c: Columns, temperature: float, side: str) -> Columns:
    """One side at a temperature, by the identity lp_T - lp_1 = (1/T - 1)(lp_1 + H); values stay below 0.

    The identity wants a Renyi entropy; with Shannon's it is right to first order, so for T near 1.
    """
    column = R if side == "rollout" else T
    x = c[column].astype(np.float64)
    new = np.minimum(x + (1 / temperature - 1) * (x + c[H]), _BELOW_ZERO)
    return c.with_tokens(**{column: new.astype(np.float32)})


def constant(c: Columns, value: float, rows: Array, column: str = R) -> Columns:
    """A constant in place of some log-probs."""
    x = c[column].copy()
    x[rows] = value
    return c.with_tokens(**{column: x})


def repeated_ids(c: Columns) -> Array:
    """Whether the id occurred earlier in its sequence."""
    seen: set[tuple[int, int]] = set()
    out = np.zeros(len(c.number), bool)
    for i, key in enumerate(zip(c.number.tolist(), c["token_id"].tolist(), strict=True)):
        out[i] = key in seen
        seen.add(key)
    return out


def offset(c: Columns, rows: Array, nats: float, column: str = R) -> Columns:
    """Some log-probs moved by a constant, as a penalty or a bias on one side does; values stay below 0."""
    x = c[column].copy()
    x[rows] = np.minimum(x[rows] + nats, _BELOW_ZERO)
    return c.with_tokens(**{column: x})


def noisy(c: Columns, rows: Array, size: float, seed: int = 0) -> Columns:
    """The trainer's log-probs of some tokens off by normal noise of that size."""
    x = c[T].copy()
    x[rows] = np.minimum(x[rows] + np.random.default_rng(seed).normal(0, size, int(np.sum(rows))), _BELOW_ZERO)
    return c.with_tokens(**{T: x})


def place(c: Columns) -> Array:
    """Index of each token in its response."""
    return np.arange(len(c.number)) - c.starts[c.number]
