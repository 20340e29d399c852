"""Rule 30: sequences of a kind of their own. Some prompts differ far more than others, again and again.

Each sequence's mean |d| is divided by what its tokens' probabilities let expect; the rest is near 1 in a sound run. Two
groups far apart, and the same prompts in the upper one more often than chance: a fault of these inputs (a template, an
image, a length), which a mask would hide and not repair. A rollout that is used in several steps counts once: copies
repeat their prompt whatever is wrong. A warning: the other sequences' numbers stand.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from timscope.analysis.check.pairs import Floats
from timscope.analysis.check.report import ROWS, Rule
from timscope.analysis.check.sums import Table
from timscope.analysis.findings import percent

NAME = "outlier-sequences"
MIN_TOKENS, MIN_SEQUENCES = 20, 40
# Halves of one normal distribution are 2.65 of their standard deviations apart, however they are scaled.
MIN_RATIO, MIN_APART, MIN_Z = 4.0, 3.5, 5.0
_SHUFFLES = 200


def outlier_sequences(table: Table, expected: Floats, sequences: pl.DataFrame) -> Rule:
    """The rule. `expected` [S]: mean |d| expected of each row of `table`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = table["abs"] / table["n"] / expected
    use = (table["n"] >= MIN_TOKENS) & np.isfinite(excess) & (excess > 0)
    key = pl.DataFrame({"step": table.step.astype(np.int64), "sequence": table.sequence.astype(np.int64)})
    facts = key.join(sequences.unique(["step", "sequence"]), on=["step", "sequence"], how="left", maintain_order="left")
    use &= _first_uses(table, facts)
    if use.sum() < MIN_SEQUENCES:
        said = f"needs {MIN_SEQUENCES} rollouts of {MIN_TOKENS} tokens, has {int(use.sum())}"
        return Rule(NAME, None, said, {"sequences": int(use.sum())}, "warn")
    x = np.log(excess[use])
    cut, apart, ratio = _split(x)
    upper = x > cut
    evidence: dict[str, Any] = {
        "sequences": len(x),
        "share_above": float(upper.mean()),
        "ratio": ratio,
        "standard_deviations_apart": apart,
    }
    if not (ratio > MIN_RATIO and apart > MIN_APART and 3 <= upper.sum() < 0.5 * len(x)):
        said = f"one group: best split {ratio:.1f} times apart ({len(x):,} sequences)"
        return Rule(NAME, True, said, evidence, "warn")
    key = key.filter(use)
    z = _repeats(upper, facts.filter(use)["prompt"])
    evidence["repeat_z"] = z
    if z is not None and z < MIN_Z:
        said = f"{percent(float(upper.mean()))} of sequences stand {ratio:.1f} times apart, but not by prompt"
        return Rule(NAME, True, said, evidence, "warn")
    order = np.flatnonzero(upper)[np.argsort(-x[upper])][:ROWS]
    evidence["rows"] = [{**key.row(int(i), named=True), "mean_abs_over_expected": float(np.exp(x[i]))} for i in order]
    where = f"the same prompts again and again (z = {z:.0f})" if z is not None else "no prompt repeats, so not told why"
    said = f"{percent(float(upper.mean()))} of sequences differ {ratio:.0f} times more than the rest: {where}"
    return Rule(NAME, False, said, evidence, "warn")


def _first_uses(table: Table, facts: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Rows that are no copy of an earlier one, [S]: the same uid, or the same log-probs of the same prompt."""
    rows = facts.select("prompt", n=pl.Series(table["n"]), r=pl.Series(table["r"]))
    again = ~rows.select(pl.struct("prompt", "n", "r").is_first_distinct()).to_series()
    again |= facts["uid"].is_not_null() & ~facts["uid"].is_first_distinct()
    return ~again.to_numpy()


def _split(x: Floats) -> tuple[float, float, float]:
    """The cut of [S] with the largest variance between its sides; how far apart the means are, in the sides' mean
    standard deviation and as a ratio. Sides hold 1 % or 3 values at least."""
    s = np.sort(x)
    n = len(s)
    least = max(3, n // 100)
    left = np.arange(1, n)
    total, running = s.sum(), np.cumsum(s)[:-1]
    between = (running - left * total / n) ** 2 / (left * (n - left))
    between[: least - 1], between[n - least :] = -1, -1
    i = int(between.argmax())
    low, high = s[: i + 1], s[i + 1 :]
    spread = math.sqrt((low.var() + high.var()) / 2)
    gap = float(high.mean() - low.mean())
    return float((s[i] + s[i + 1]) / 2), gap / spread if spread > 0 else math.inf, math.exp(min(gap, 700.0))


def _repeats(upper: npt.NDArray[np.bool_], prompts: pl.Series) -> float | None:
    """z of the number of pairs of one prompt that are both outliers, against shuffles; None where no prompt repeats."""
    known = prompts.is_not_null().to_numpy()
    group = prompts.drop_nulls().rank("dense").to_numpy().astype(np.int64) - 1
    flags = upper[known].astype(np.int64)
    if not len(group) or np.bincount(group).max() < 2:
        return None

    def both(f: npt.NDArray[np.int64]) -> float:
        k = np.bincount(group, f)
        return float((k * (k - 1)).sum() / 2)

    rng = np.random.default_rng(0)
    chance = np.array([both(rng.permutation(flags)) for _ in range(_SHUFFLES)])
    return (both(flags) - float(chance.mean())) / max(float(chance.std()), 0.5)
