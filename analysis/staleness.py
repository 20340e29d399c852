"""Whether old weights explain the gap: tokens that were sampled by an earlier version than the one being trained."""

from __future__ import annotations

from timscope.analysis.columns import ROLLOUT, TRAINER
from timscope.analysis.findings import Cause
from timscope.data import Run

# The excess of |d| on lagging tokens that counts: three clustered standard errors and a fifth above the rest.
MIN_Z, MIN_RATIO = 3.0, 1.2


def lag_cause(run: Run) -> Cause | None:
    """`stale-weights` where tokens lag (trained version - sampling version > 0) and the lag, as far as seen, matters.

    With tokens at lag 0 to compare with, mean |d| must be higher on lagging sequences by 3 standard errors (one mean a
    sequence) and 1.2 times. Without any, a lag cannot be told from a mismatch: confidence 0.5. None where versions are
    not recorded, nothing lags, or lagging tokens are no worse (a recomputed or stored old log-prob of the sampling
    version).
    """
    frame = run.sql(
        f"""
        WITH t AS (
            SELECT w.step, w.sequence, s.weight_version - w.weight_version AS lag,
                abs(w.{TRAINER}::DOUBLE - w.{ROLLOUT}::DOUBLE) AS d
            FROM witnesses w JOIN steps s USING (step) WHERE w.mask
        ), per_sequence AS (
            SELECT lag, avg(d) AS m, count(*) AS n FROM t WHERE isfinite(d) AND lag IS NOT NULL
            GROUP BY step, sequence, lag
        )
        SELECT lag > 0 AS lagging, avg(m) AS mean, coalesce(var_samp(m) / count(*), 0) AS square_se,
            sum(n) AS tokens, max(lag) AS max_lag, sum(lag * n) / sum(n) AS mean_lag
        FROM per_sequence GROUP BY lag > 0
        """
    )
    groups = {bool(row["lagging"]): row for row in frame.to_dicts()}
    if True not in groups:
        return None
    late, fresh = groups[True], groups.get(False)
    evidence = {
        "lagging_tokens": int(late["tokens"]),
        "max_lag": int(late["max_lag"]),
        "mean_lag": float(late["mean_lag"]),
        "mean_abs_lagging": late["mean"],
        "mean_abs_fresh": None,
    }
    if fresh is None:
        return Cause("stale-weights", 0.5, late["mean"], {**evidence, "note": "no token at lag 0 to compare with"})
    error = float(late["square_se"] + fresh["square_se"]) ** 0.5
    excess = late["mean"] - fresh["mean"]
    z = excess / error if error > 0 else 0.0
    if z < MIN_Z or late["mean"] < MIN_RATIO * fresh["mean"]:
        return None
    return Cause("stale-weights", 0.9, excess, {**evidence, "mean_abs_fresh": fresh["mean"], "z": z})
