"""Part of rule 1: weight versions and ranks over the steps of a run."""

from __future__ import annotations

from typing import Any

import polars as pl

from timscope.analysis.check.chunks import NO_INT
from timscope.analysis.check.report import ROWS
from timscope.data import Run


def versions(run: Run, stretches: pl.DataFrame, sequences: pl.DataFrame) -> dict[str, dict[str, Any]]:
    """Versions never go back in a run, unless the job was resumed: then counters may start again."""
    steps = run.sql(
        "SELECT step::BIGINT AS step, weight_version::BIGINT AS trained, coalesce(resume, 0) AS resume FROM steps "
        "WHERE weight_version IS NOT NULL ORDER BY step"
    )
    if not steps.height:
        return {}
    found: dict[str, dict[str, Any]] = {}
    before = steps.with_columns(last=pl.col("trained").shift(1).over("resume"))
    back = before.filter(pl.col("trained") < pl.col("last"))
    # Where a job was resumed but no step says so, a counter that starts again looks the same.
    if back.height and (not _resumed(run) or steps["resume"].n_unique() > 1):
        found["version_back"] = {"count": back.height, "rows": back.head(ROWS).to_dicts()}
    newest = stretches.filter(pl.col("newest") != NO_INT).select("step", "sequence", sampled="newest")
    said = sequences.select("step", "sequence", sampled="weight_version").drop_nulls()
    both = pl.concat([newest, said]).join(steps, on="step")
    ahead = both.filter(pl.col("sampled") > pl.col("trained")).unique(["step", "sequence"], maintain_order=True)
    # Ahead everywhere: the two sides count from different numbers.
    if 0 < ahead.height < both.unique(["step", "sequence"]).height and not _resumed(run):
        found["version_ahead"] = {
            "count": ahead.height,
            "rows": ahead.select("step", "sequence", "sampled", "trained").head(ROWS).to_dicts(),
        }
    return found


def ranks(sequences: pl.DataFrame) -> dict[str, dict[str, Any]]:
    """Ranks that most steps have and some steps lack."""
    by_step = sequences.drop_nulls("rank").group_by("step").agg(pl.col("rank").unique().sort())
    if by_step.height < 2:
        return {}
    every = by_step.explode("rank").group_by("rank").len().filter(pl.col("len") * 2 > by_step.height)["rank"]
    usual = set(every.to_list())
    lacking = [
        {"step": step, "missing": sorted(usual - set(ranks))}
        for step, ranks in by_step.sort("step").iter_rows()
        if usual - set(ranks)
    ]
    return {"rank_missing": {"count": len(lacking), "rows": lacking[:ROWS]}} if lacking else {}


def _resumed(run: Run) -> bool:
    return run.manifest.recorder.resumes > 0 or any(state.resumes for state in run.recorders)
