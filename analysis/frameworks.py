"""The frameworks' own numbers recomputed by their own weighting, so that a gap between their log and the run shows."""

from __future__ import annotations

import polars as pl

from timscope.data import Run

TRL_MEAN = "sampling/sampling_logp_difference/mean"
TRL_MAX = "sampling/sampling_logp_difference/max"


def trl_logp_difference(frame: pl.DataFrame) -> pl.DataFrame:
    """TRL's `sampling/sampling_logp_difference/{mean,max}` a step, from tokens.

    `frame` has step, rank, mask, rollout_logprob, old_logprob (nats), one row a token; returns step, mean, max. TRL
    takes |old - rollout| on masked-in tokens without NaN; mean: the token mean of each rank, then the plain mean over
    ranks (not the pooled mean where ranks hold unequal numbers of tokens); max: over everything; a rank without tokens
    counts as 0. Holds where one generation batch is logged a step (TRL averages over the batches between two log
    calls).
    """
    difference = (pl.col("old_logprob").cast(pl.Float64) - pl.col("rollout_logprob").cast(pl.Float64)).abs()
    counted = pl.when(pl.col("mask") & difference.is_not_nan()).then(difference)
    by_rank = frame.group_by("step", "rank").agg(counted.mean().alias("mean"), counted.max().alias("max"))
    by_rank = by_rank.with_columns(pl.col("mean", "max").fill_null(0.0))
    return by_rank.group_by("step").agg(pl.col("mean").mean(), pl.col("max").max()).sort("step")


def trl_gaps(run: Run) -> pl.DataFrame | None:
    """Recomputed against logged: step, mean, mean_logged, max, max_logged; None where the run has no such metric."""
    steps = run.steps()
    if not {TRL_MEAN, TRL_MAX} <= set(steps.columns):
        return None
    # As in `trl_logp_difference`, but in SQL, so that only one row a step leaves DuckDB.
    ours = run.sql(
        """
        WITH t AS (
            SELECT step, rank, abs(old_logprob::DOUBLE - rollout_logprob::DOUBLE) AS d, mask
            FROM witnesses LEFT JOIN (SELECT step, sequence, rank FROM sequences) USING (step, sequence)
        ), by_rank AS (
            SELECT step, rank, coalesce(avg(d) FILTER (mask AND NOT isnan(d)), 0) AS mean,
                coalesce(max(d) FILTER (mask AND NOT isnan(d)), 0) AS max, count(d) AS n FROM t GROUP BY step, rank
        )
        SELECT step, avg(mean) AS mean, max(max) AS max FROM by_rank GROUP BY step HAVING sum(n) > 0 ORDER BY step
        """
    )
    logged = steps.select("step", pl.col(TRL_MEAN).alias("mean_logged"), pl.col(TRL_MAX).alias("max_logged"))
    joined = ours.join(logged.drop_nulls(), on="step", how="inner").sort("step")
    return joined.select("step", "mean", "mean_logged", "max", "max_logged")
