"""Faults of the data that can be proved by looking: copies, fills of zero, non-finite values. Only these are named
here.
"""

from __future__ import annotations

import polars as pl

from timscope.analysis.columns import EXACT, LOSS, ROLLOUT, TRAINER
from timscope.analysis.findings import Cause
from timscope.data import Run

# A step this short may be all zeros, or all equal, by chance.
MIN_TOKENS = 8
# A mean rollout log-prob above this could be a step of near-certain tokens, where an exact 0.0 is no fault.
CERTAIN = -0.05


def by_step(run: Run, replays: bool = True) -> pl.DataFrame:
    """One row a step: tokens in the loss with both log-probs finite, and how many are equal or 0.

    Columns: step, tokens, equal, zeros, mean_rollout, in_loss, loss_equal, replayed, exact_equal. Without `replays` the
    last two are 0 and only the token table is read, which is several times faster.
    """
    table, exact = ("witnesses", EXACT) if replays else ("tokens", "NULL::FLOAT")
    return run.sql(
        f"""
        SELECT step, count(*) AS tokens,
            count(*) FILTER (r = t) AS equal, count(*) FILTER (t = 0) AS zeros, avg(r) AS mean_rollout,
            count(*) FILTER (n IS NOT NULL) AS in_loss, count(*) FILTER (n = r) AS loss_equal,
            count(*) FILTER (z IS NOT NULL) AS replayed, count(*) FILTER (z = r) AS exact_equal
        FROM (SELECT step, {ROLLOUT} AS r, {TRAINER} AS t, {LOSS} AS n, {exact} AS z FROM {table} WHERE mask)
        WHERE isfinite(r) AND isfinite(t) GROUP BY step ORDER BY step
        """
    )


def zero_steps(steps: pl.DataFrame) -> pl.DataFrame:
    """The rows of `by_step` whose every old log-prob is exactly 0.0 although the rollout's are not near 0."""
    return steps.filter(
        (pl.col("tokens") >= MIN_TOKENS) & (pl.col("zeros") == pl.col("tokens")) & (pl.col("mean_rollout") < CERTAIN)
    )


def copied_steps(steps: pl.DataFrame) -> pl.DataFrame:
    """The rows of `by_step` in which old equals rollout bit for bit on every token."""
    return steps.filter((pl.col("tokens") >= MIN_TOKENS) & (pl.col("equal") == pl.col("tokens")))


def zero_filled(steps: pl.DataFrame) -> Cause | None:
    """`zero-filled-old` from the rows of `by_step`."""
    bad = zero_steps(steps)
    if not bad.height:
        return None
    evidence = {
        "steps": bad["step"].to_list()[:20],
        "number_of_steps": bad.height,
        "tokens": int(bad["tokens"].sum()),
        "mean_rollout_logprob": bad["mean_rollout"][0],
    }
    return Cause("zero-filled-old", 1.0, bad.height / steps.height, evidence)


def old_copies_rollout(steps: pl.DataFrame, loss_mode: str) -> Cause | None:
    """Steps where old equals rollout bit for bit on every token, unless another witness shows that the engines do
    agree.

    Engines that are exact by design give the same picture as a copy. What tells them apart: the trainer's in-loss
    log-prob or the exact replay also equals the rollout bit for bit on most tokens, or the manifest says `recompute`
    and no in-loss log-prob says otherwise.
    """
    same = copied_steps(steps)
    if not same.height:
        return None
    in_loss, replayed = int(same["in_loss"].sum()), int(same["replayed"].sum())
    loss_equal = int(same["loss_equal"].sum()) / in_loss if in_loss else None
    exact_equal = int(same["exact_equal"].sum()) / replayed if replayed else None
    agree = (loss_equal or 0) > 0.5 or (exact_equal or 0) > 0.5
    if loss_mode != "bypass" and (agree or (loss_mode == "recompute" and loss_equal is None)):
        return None
    confidence = 1.0 if loss_mode == "bypass" else 0.9 if loss_equal is not None else 0.5
    evidence = {
        "steps": same["step"].to_list()[:20],
        "number_of_steps": same.height,
        "tokens": int(same["tokens"].sum()),
        "loss_mode": loss_mode,
        "loss_equals_rollout": loss_equal,
        "exact_equals_rollout": exact_equal,
    }
    return Cause("old-copies-rollout", confidence, same.height / steps.height, evidence)


def non_finite(run: Run) -> Cause | None:
    """NaN and infinities among masked-in log-probs: counted by column, with the first rows; never averaged."""
    columns = (ROLLOUT, TRAINER, LOSS, EXACT)
    kinds = {"nan": "isnan({c})", "inf": "isinf({c}) AND {c} > 0", "minus_inf": "isinf({c}) AND {c} < 0"}
    select = ", ".join(
        f'count(*) FILTER ({test.format(c=c)}) AS "{c}:{kind}"' for c in columns for kind, test in kinds.items()
    )
    row = run.sql(f"SELECT {select} FROM witnesses WHERE mask").row(0, named=True)
    counts = {name: int(n) for name, n in row.items() if n}
    if not counts:
        return None
    wrong = " OR ".join(f"NOT isfinite({c})" for c in columns)
    first = run.sql(
        f"SELECT step, sequence, position, {', '.join(columns)} FROM witnesses WHERE mask AND ({wrong}) "
        "ORDER BY step, sequence, position LIMIT 3"
    )
    return Cause("non-finite", 1.0, float(sum(counts.values())), {"counts": counts, "first": first.to_dicts()})


def find_faults(run: Run) -> list[Cause]:
    """Every fault of this file that fires, in the order in which they should be fixed."""
    steps = by_step(run)
    tests = (non_finite(run), zero_filled(steps), old_copies_rollout(steps, run.manifest.algorithm.loss_mode))
    return [cause for cause in tests if cause is not None]
