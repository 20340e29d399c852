"""From shares to a name: which side the mismatch comes from, and when nobody can tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# One side is named alone when its attributed share is above this with 95 % confidence; a quarter elsewhere is worth
# saying.
DOMINANT = 0.75
# "both" needs at least this from each side, again with 95 % confidence.
NOTICEABLE = 0.1
# The exact witness's own noise (-cov, as a share of var(A - C)) above which attribution rests on independence alone.
TOO_NOISY = 0.5
Z95 = 1.96


@dataclass(frozen=True)
class Side:
    """`share` is the rollout engine's attributed share with its 95 % interval; `noise` is that of the exact witness."""

    name: str
    why: str
    share: float | None = None
    low: float | None = None
    high: float | None = None
    noise: float | None = None


def name_side(record: dict[str, Any], widen: float = 1.0) -> Side:
    """Name the side from one row of `decompose`. `widen` multiplies the standard error (copies of one rollout)."""
    share, se = record["attributed_rollout"], record["se_attributed"]
    if share is None or se is None:
        return Side("not resolvable", "the difference does not vary, or fewer than two sequences were replayed")
    low, high = share - Z95 * widen * se, share + Z95 * widen * se
    noise = max(0.0, -record["share_covariance"] / 2)
    offset = record["mean_total"] ** 2
    name, why = "not resolvable", "the interval of the shares is too wide: replay more steps"
    if noise > TOO_NOISY:
        why = "the exact witness is as far from each side as they are from each other: check its weights and dtype"
    elif offset > record["var_total"]:
        # A constant offset has no variance: name the side by where the offset lies.
        part = record["mean_rollout"] / record["mean_total"]
        why = f"a constant offset of {record['mean_total']:.3g} nats outweighs the scatter"
        name = "rollout engine" if part > DOMINANT else "trainer" if part < 1 - DOMINANT else "both"
    elif low > DOMINANT:
        name, why = "rollout engine", "its side holds at least three quarters of the variance, with 95 % confidence"
    elif high < 1 - DOMINANT:
        name, why = "trainer", "its side holds at least three quarters of the variance, with 95 % confidence"
    elif low > NOTICEABLE and high < 1 - NOTICEABLE:
        name, why = "both", "each side differs from the exact engine by a noticeable part of the whole"
    return Side(name, why, share, low, high, noise)
