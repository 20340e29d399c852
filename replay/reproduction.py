"""How far a replay reproduces the trainer: the share of tokens on which it equals `old_logprob` bit for bit."""

from __future__ import annotations

from typing import Any

import polars as pl

from timscope.data import Run

KEY = ["step", "sequence", "position"]


def reproduction(run: Run, name: str) -> dict[str, Any] | None:
    """{"tokens", "equal_share", "mean_abs_diff", "max_abs_diff"} against the trainer's log-probs (nats), over the
    tokens that have both; None where there is none. A NaN on one side is a difference, and stays out of the mean."""
    replay = run.replay(name)
    if not replay.complete_steps:
        return None
    mine = pl.read_parquet(replay.parts, columns=[*KEY, replay.column]).rename({replay.column: "mine"})
    theirs = run.tokens(replay.complete_steps).select(*KEY, "old_logprob")
    both = mine.join(theirs, on=KEY).drop_nulls(["mine", "old_logprob"])
    if both.is_empty():
        return None
    apart = (both["mine"].cast(pl.Float64) - both["old_logprob"].cast(pl.Float64)).abs()
    finite = apart.filter(apart.is_finite())
    return {
        "tokens": both.height,
        "equal_share": float((apart == 0).sum()) / both.height,
        "mean_abs_diff": finite.mean(),
        "max_abs_diff": finite.max(),
    }
