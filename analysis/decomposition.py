"""Which side the mismatch comes from: A - C = (A - Z) + (Z - C), token by token, with shares that hide no covariance.

x = A - Z is the rollout engine's part, y = Z - C the trainer's, both against the exact witness Z. Note the sign: here
the rollout side comes first, so A - C = -d. `formulas.shares` holds the estimators and says what each share means.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import polars as pl

from timscope.analysis.columns import EXACT, ROLLOUT, TRAINER, witness
from timscope.analysis.formulas.shares import SequenceMoments, variance_shares
from timscope.data import Run

# Z and C agree "within float32 noise" below this: plain fp32 forwards of one model in other batch shapes differ by up
# to 2.8e-5 and 3e-6 on average (SmolLM2-135M on a CPU).
CLOSE = 1e-5

_MOMENTS = ("n", "x", "y", "xx", "yy", "xy")

_SUMS = {
    "abs_x": "sum(abs(x))",
    "abs_y": "sum(abs(y))",
    "abs_total": "sum(abs(a - c))",
    "square_x": "sum(x * x)",
    "square_y": "sum(y * y)",
    "square_total": "sum((a - c) * (a - c))",
    "z_equals_c": "count(*) FILTER (z = c)",
    "z_close_to_c": f"count(*) FILTER (abs(y) <= {CLOSE!r})",
    "a_equals_z": "count(*) FILTER (a = z)",
    "residual": "max(abs((a - c) - (x + y)))",
}


def _query(rollout: str, exact: str, trainer: str, shift: tuple[float, float]) -> str:
    """Sums a sequence; `shift` is taken off x and y in the moments, so that a common offset costs no digits."""
    u, v = f"(x - {shift[0]!r}::DOUBLE)", f"(y - {shift[1]!r}::DOUBLE)"
    sums = ",\n    ".join(f"{sql} AS {name}" for name, sql in _SUMS.items())
    return f"""
WITH three AS (
    SELECT step, sequence, {rollout}::DOUBLE AS a, {exact}::DOUBLE AS z, {trainer}::DOUBLE AS c
    FROM witnesses WHERE mask
), sides AS (
    SELECT *, a - z AS x, z - c AS y FROM three WHERE isfinite(a) AND isfinite(z) AND isfinite(c)
)
SELECT step, sequence, count(*)::DOUBLE AS n, sum({u}) AS x, sum({v}) AS y,
    sum({u} * {u}) AS xx, sum({v} * {v}) AS yy, sum({u} * {v}) AS xy,
    {sums}
FROM sides GROUP BY step, sequence ORDER BY step, sequence
"""


def _centre(run: Run, rollout: str, exact: str, trainer: str) -> tuple[float, float]:
    x, y = f"({rollout}::DOUBLE - {exact}::DOUBLE)", f"({exact}::DOUBLE - {trainer}::DOUBLE)"
    row = run.sql(
        f"SELECT coalesce(avg({x}), 0) AS x, coalesce(avg({y}), 0) AS y "
        f"FROM witnesses WHERE mask AND isfinite({x}) AND isfinite({y})"
    ).row(0)
    return float(row[0]), float(row[1])


def _record(group: pl.DataFrame, shift: tuple[float, float]) -> dict[str, Any]:
    """Figures of one group of sequences."""
    moments = SequenceMoments(*(group[name].to_numpy().astype(np.float64) for name in _MOMENTS))
    tokens = float(moments.n.sum())

    def per_token(name: str) -> float:
        return float(group[name].sum()) / tokens if tokens else float("nan")

    return {
        "tokens": int(tokens),
        "sequences": group.height,
        **asdict(variance_shares(moments, shift)),
        "mean_total": per_token("x") + per_token("y") + sum(shift),
        "mean_abs_rollout": per_token("abs_x"),
        "mean_abs_trainer": per_token("abs_y"),
        "mean_abs_total": per_token("abs_total"),
        "mean_square_rollout": per_token("square_x"),
        "mean_square_trainer": per_token("square_y"),
        "mean_square_total": per_token("square_total"),
        "exact_equals_trainer": per_token("z_equals_c"),
        "exact_close_to_trainer": per_token("z_close_to_c"),
        "rollout_equals_exact": per_token("a_equals_z"),
        "identity_residual": float(group["residual"].max()) if tokens else float("nan"),  # type: ignore[arg-type]
    }


def decompose(
    run: Run, by_step: bool = True, rollout: str = ROLLOUT, exact: str = EXACT, trainer: str = TRAINER
) -> pl.DataFrame:
    """Means, variances, shares and standard errors of both sides on the tokens where all three witnesses exist.

    One row a step (column `step`), or one row for the run; no row for a step that was not replayed, and `tokens` 0 for
    a run that was not. Besides the fields of `formulas.Shares`: `mean_total`, `mean_abs_*`, `mean_square_*` (nats,
    nats^2), `exact_equals_trainer` and `rollout_equals_exact` (share of tokens equal bit for bit),
    `exact_close_to_trainer` (within 1e-5) and `identity_residual` (largest |(A - C) - (A - Z) - (Z - C)|, float64
    rounding only). Undefined is NULL.
    """
    names = witness(rollout), witness(exact), witness(trainer)
    shift = _centre(run, *names)
    sums = run.sql(_query(*names, shift))
    whole = pl.DataFrame([_record(sums, shift)])
    if not by_step:
        return whole.fill_nan(None)
    rows = [{"step": key[0], **_record(g, shift)} for key, g in sums.group_by("step", maintain_order=True)]
    schema = pl.Schema([("step", pl.Int32()), *whole.schema.items()])
    return pl.DataFrame(rows, schema=schema).fill_nan(None)
