"""What the figures draw, aggregated in SQL before anything leaves DuckDB: at most 20,000 marks a figure."""

from __future__ import annotations

import polars as pl

from timscope.analysis.columns import EXACT, ROLLOUT, TRAINER
from timscope.analysis.metrics import pair_metrics
from timscope.data import Run

BINS_PER_DECADE = 8
MAX_MARKS = 20_000


def timeline(run: Run) -> pl.DataFrame:
    """One row a step: mean_abs, max_abs, k3 of A and C; mean_abs_rollout (A, Z), mean_abs_trainer (Z, C), or NULL."""
    main = pair_metrics(run, ROLLOUT, TRAINER).select("step", "mean_abs", "max_abs", "k3")
    for name, pair in (("rollout", (ROLLOUT, EXACT)), ("trainer", (EXACT, TRAINER))):
        part = run.sql(
            f"SELECT step, avg(abs({pair[0]}::DOUBLE - {pair[1]}::DOUBLE)) AS mean_abs_{name} FROM witnesses "
            f"WHERE mask AND isfinite({pair[0]}) AND isfinite({pair[1]}) GROUP BY step"
        )
        main = main.join(part, on="step", how="left")
    return main.sort("step")


def distribution(run: Run, left: str, right: str) -> pl.DataFrame:
    """|right - left| in bins of 1/8 decade: bin (its lower edge is 10^(bin/8)), tokens; exact zeros have bin NULL."""
    return run.sql(
        f"""
        SELECT CASE WHEN d > 0 THEN floor(log10(d) * {BINS_PER_DECADE})::INTEGER END AS bin, count(*) AS tokens
        FROM (SELECT abs({right}::DOUBLE - {left}::DOUBLE) AS d FROM witnesses WHERE mask)
        WHERE isfinite(d) GROUP BY bin ORDER BY bin NULLS FIRST
        """
    )


def triples(run: Run, limit: int) -> pl.DataFrame:
    """Up to `limit` tokens with all three witnesses, columns a, z, c in nats: a fixed pseudo-random choice by key."""
    return run.sql(
        f"""
        SELECT {ROLLOUT}::DOUBLE AS a, {EXACT}::DOUBLE AS z, {TRAINER}::DOUBLE AS c FROM witnesses
        WHERE mask AND isfinite({ROLLOUT}) AND isfinite({EXACT}) AND isfinite({TRAINER})
        ORDER BY hash(step, sequence, position), step, sequence, position LIMIT {int(limit)}
        """
    )
