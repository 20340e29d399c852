"""Rule 29: numbers that are an artefact of how they were computed: masks, caps, advantages, the framework's metrics.

A warning: timscope's own figures come from the tokens, so they stand; the framework's do not mean what they say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from timscope.analysis.check.advantages import MIN_SHARE, advantage_gaps
from timscope.analysis.check.chunks import Chunk
from timscope.analysis.check.logged import metric_gaps
from timscope.analysis.check.report import ROWS, Rule
from timscope.data import Run

NAME = "estimator-artefact"
_RATIOS = ("ratio", "is_weight", "rollout_is", "tis", "importance")
_NOT_RAW = ("frac", "clip_ratio", "clipfrac", "low", "high", "std", "min", "mean", "len", "num")


@dataclass
class MaskedAdvantages:
    """Counts sequences whose per-token advantage varies and is not 0 on tokens outside the loss."""

    sequences: int = 0
    wrong: int = 0
    rows: list[dict[str, Any]] | None = None

    def add(self, chunk: Chunk) -> None:
        """One chunk's share."""
        if chunk.null["advantage"] is True:
            return
        a = np.nan_to_num(chunk.values["advantage"])
        outside = ~chunk.mask & (a != 0.0)
        low, high = (f.reduceat(a, chunk.starts) for f in (np.minimum, np.maximum))
        # One value over the whole sequence is a sequence's advantage written per token: the mask removes it.
        varies = (low != high) & (chunk.sums(chunk.mask) < chunk.lengths)
        outside &= chunk.per_token(varies)
        bad = chunk.sums(outside) > 0
        self.sequences += int(varies.sum())
        self.wrong += int(bad.sum())
        if bad.any() and not self.rows:
            self.rows = chunk.where(np.flatnonzero(outside)[:ROWS])


def capped_series(steps: pl.DataFrame) -> dict[str, dict[str, Any]]:
    """Logged maxima of importance ratios that stop at one round number: they were taken after clipping."""
    found = {}
    for name in steps.columns:
        lower = name.lower()
        if "max" not in lower or not any(r in lower for r in _RATIOS):
            continue
        if any(word in lower.rsplit("/", 1)[-1] for word in _NOT_RAW) or "clip_ratio" in lower:
            continue
        values = steps[name].drop_nulls().to_numpy()
        if len(values) < 4 or not steps[name].dtype.is_numeric():
            continue
        top = float(values.max())
        hits = int((np.abs(values - top) <= 1e-6 * abs(top)).sum())
        if top > 1.0 and abs(top * 20 - round(top * 20)) < 1e-4 and hits >= max(3, len(values) // 5):
            found[name] = {"cap": top, "steps_at_cap": hits, "steps": len(values)}
    return found


def estimator_artefact(
    run: Run, steps: pl.DataFrame, sequences: pl.DataFrame, masked: MaskedAdvantages, pair_is_old: bool
) -> Rule:
    """The rule. `pair_is_old`: old_logprob is a measurement; where not, the framework's metrics are not recomputed."""
    gaps = metric_gaps(run, steps) if pair_is_old else {}
    capped = capped_series(steps)
    advantages = advantage_gaps(run.manifest, sequences)
    evidence: dict[str, Any] = {
        "metrics": gaps,
        "capped": capped,
        "advantages": advantages,
        "masked_advantages": {"sequences": masked.sequences, "wrong": masked.wrong, "rows": masked.rows or []},
    }
    said = []
    for name, gap in gaps.items():
        if gap["differ"] > 0.2 * gap["steps"]:
            why = ": it counts fully masked rows" if gap.get("diluted") else ""
            row = gap["rows"][0]
            said.append(f"{name} was logged as {row['logged']:.4g}, the tokens give {row['recomputed']:.4g}{why}")
    said += [f"{name} stops at {cap['cap']:g}: logged after clipping" for name, cap in capped.items()]
    if advantages and advantages["share"] > MIN_SHARE:
        said.append(
            f"{advantages['differ']:,} of {advantages['groups']:,} groups' advantages do not follow from rewards"
        )
    if masked.wrong:
        said.append(f"{masked.wrong:,} sequences have an advantage on tokens outside the loss")
    if said:
        return Rule(NAME, False, "; ".join(said[:2]), evidence, "warn")
    tested = []
    if gaps:
        tested.append(f"{len(gaps)} metrics")
    if advantages:
        tested.append(f"{advantages['groups']:,} groups' advantages")
    if masked.sequences:
        tested.append("advantages outside the loss")
    if not tested:
        said_none = "needs logged mismatch metrics, or rewards by group"
        return Rule(NAME, None, said_none, {**evidence, "missing": ["steps metrics", "group_id"]}, "warn")
    return Rule(NAME, True, f"as recomputed: {', '.join(tested)}", evidence, "warn")
