"""What is compared (`Plan`), which values are placeholders, and columns shifted against each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from timscope.analysis.check.chunks import Bools, Chunk, Floats32
from timscope.analysis.columns import ROLLOUT

# Values that are never a log-prob, and those that can be one: these count only where the other side disagrees.
NEVER = (1.0, -100.0, -9999.0, -1e9)
APART = 0.5  # nats
# An exact 0.0 of t is one where r is below this: a trainer may be certain where the engine is not quite.
TRAINER_ZERO = -0.5


@dataclass(frozen=True)
class Plan:
    """What is compared, and what is repaired or left out because an earlier rule has found it.

    `trainer` is the column of t, None where there is none. `zero_limit`: an exact 0.0 of r is a placeholder where t is
    below this. `fillers`: further placeholder values, such as log(1 / vocabulary). `left_out`: (step, sequence) pairs,
    `fake_steps` whole steps, `token_ids` tokens that do not count. `lag`: t is read that many tokens earlier. `scale`:
    r is divided by it.
    """

    trainer: str | None
    zero_limit: float = -0.05
    fillers: tuple[float, ...] = (-1.0,)
    fake_steps: frozenset[int] = frozenset()
    left_out: frozenset[tuple[int, int]] = frozenset()
    token_ids: tuple[int, ...] = ()
    lag: int = 0
    scale: float = 1.0


def shifted(values: Floats32, chunk: Chunk, lag: int) -> Floats32:
    """values[i - lag] at i inside each sequence, NaN where that is outside; [N] -> [N]."""
    if lag == 0:
        return values
    out = np.full_like(values, np.nan)
    n = len(values)
    if abs(lag) < n:
        if lag > 0:
            out[lag:] = values[:-lag]
        else:
            out[:lag] = values[-lag:]
    edges = chunk.starts if lag > 0 else np.append(chunk.starts[1:], n)
    for k in range(abs(lag)):
        rows = edges + k if lag > 0 else edges - 1 - k
        # In a sequence shorter than the lag this reaches into the next one, whose edge is outside too.
        out[rows[(rows >= 0) & (rows < n)]] = np.nan
    return out


def sentinels(chunk: Chunk, plan: Plan, left: str, right: str | None) -> Bools:
    """Where column `left` holds a placeholder instead of a log-prob, [N], tokens outside the loss included."""
    key = (left, right, plan.zero_limit, plan.fillers, plan.lag)
    if key not in chunk.memo:
        chunk.memo[key] = _sentinels(chunk, plan, left, right)
    return chunk.memo[key]


def _sentinels(chunk: Chunk, plan: Plan, left: str, right: str | None) -> Bools:
    x = chunk.values[left]
    with np.errstate(invalid="ignore"):
        found: Bools = (x >= 1.0) | (x <= -100.0)
        if found.any():
            found &= np.isin(x, np.array(NEVER, np.float32))
        if right is not None:
            mine = left == ROLLOUT
            other = shifted(chunk.values[right], chunk, plan.lag if mine else -plan.lag)
            found |= (x == 0.0) & (other < (plan.zero_limit if mine else min(plan.zero_limit, TRAINER_ZERO)))
            for value in plan.fillers:
                same = x == np.float32(value)
                if same.any():
                    found |= same & (np.abs(x - other) > APART)
    return found


def shifted_flags(flags: Bools, chunk: Chunk, lag: int) -> Bools:
    """As `shifted`, for flags: false outside the sequence."""
    return flags if lag == 0 else shifted(flags.astype(np.float32), chunk, lag) == 1.0
