"""The metric dictionary as SQL: every figure of `formulas.summarise` for any two witnesses, per step or overall, out of
core.

`formulas` holds the definitions, units and framework names; the tests hold this file to them.
"""

from __future__ import annotations

import math

import polars as pl

from timscope.analysis.columns import ROLLOUT, TRAINER, witness
from timscope.analysis.expressions import clamped, defined, excess_exp, expm1
from timscope.analysis.formulas.identity import CONSTANT
from timscope.analysis.formulas.summary import TAUS, tau_name
from timscope.data import Run

# Token sums want DuckDB's plain avg, not favg: Kahan's compensation turns an honest inf into NaN on older versions.
_BEYOND = ",\n    ".join(
    f"count(*) FILTER (abs(d) > {math.log(tau)!r}) / count(*)::DOUBLE AS {tau_name(tau)}" for tau in TAUS
)


def _stddev(values: str) -> str:
    """Sample standard deviation of the finite values: DuckDB 1.5 refuses infinite ones even where nobody asks."""
    return f"stddev_samp(CASE WHEN isfinite({values}) THEN {values} END)"


def _z(values: str) -> str:
    """z of the mean of per-sequence values against 0, as `formulas.identity` defines it."""
    se = f"({_stddev(values)} / sqrt(count(*)))"
    return f"""CASE
        WHEN count(*) < 2 OR NOT bool_and(isfinite({values})) THEN NULL
        WHEN {se} > {CONSTANT!r} * abs(avg({values})) THEN avg({values}) / {se}
        WHEN avg({values}) = 0 THEN 0 ELSE sign(avg({values})) * 'inf'::DOUBLE END"""


def _query(left: str, right: str, by_step: bool) -> str:
    """g is the step, or 0 for the whole run; l and r the two log-probs; d = r - l."""
    return f"""
WITH base AS MATERIALIZED (
    SELECT {"step" if by_step else "0"} AS g, step, sequence, {left}::DOUBLE AS l, {right}::DOUBLE AS r
    FROM witnesses WHERE mask
), kept AS MATERIALIZED (
    SELECT g, step, sequence, l, r, r - l AS d, exp(l) AS pl, exp(r) AS pr FROM base WHERE isfinite(l) AND isfinite(r)
), counted AS (
    SELECT g,
    count(*) FILTER (isfinite(l) AND isfinite(r)) AS tokens,
    count(*) FILTER (l IS NULL) AS missing_left,
    count(*) FILTER (r IS NULL) AS missing_right,
    count(*) FILTER (l IS NOT NULL AND r IS NOT NULL AND NOT (isfinite(l) AND isfinite(r))) AS nonfinite
    FROM base GROUP BY g
), centre AS MATERIALIZED (
    SELECT g, max(d) AS top, avg(l) AS l0, avg(r) AS r0, avg(pl) AS pl0, avg(pr) AS pr0 FROM kept GROUP BY g
), token_level AS (
    SELECT g,
    avg(abs(d)) AS mean_abs,
    max(abs(d)) AS max_abs,
    sqrt(avg(d * d)) AS rms,
    count(*) FILTER (l = r) / count(*)::DOUBLE AS exact_equal,
    avg(exp(abs(d))) AS mean_exp_abs,
    avg(greatest(pl, pr) * -({expm1("(-abs(d))")})) AS mean_abs_prob_diff,
    sum((pl - pl0) * (pr - pr0)) / sqrt(sum((pl - pl0) * (pl - pl0)) * sum((pr - pr0) * (pr - pr0))) AS pearson_probs,
    sum((l - l0) * (r - r0)) / sqrt(sum((l - l0) * (l - l0)) * sum((r - r0) * (r - r0))) AS pearson_logprobs,
    {_BEYOND},
    -avg(d) AS k1,
    avg({excess_exp("d")}) AS k3,
    avg({excess_exp(clamped("d"))}) AS k3_clamped,
    avg({excess_exp("(-d)")}) AS k3_reverse,
    avg({excess_exp(clamped("(-d)"))}) AS k3_reverse_clamped,
    avg({expm1("(2 * d)")}) AS chi2_token,
    avg({expm1(f"(2 * {clamped('d')})")}) AS chi2_token_clamped,
    sum(exp(d - top)) * sum(exp(d - top)) / (count(*) * sum(exp(2 * (d - top)))) AS ess_token
    FROM kept JOIN centre USING (g) GROUP BY g
), per_sequence AS MATERIALIZED (
    SELECT g, step, sequence, count(*) AS n, sum(d) AS s, sum(exp(d)) AS weight, sum({expm1("d")}) AS excess,
    -avg(l) AS left_log_ppl, -avg(r) AS right_log_ppl, -avg(d) AS difference, avg(abs(d)) AS mean_abs
    FROM kept GROUP BY g, step, sequence
), largest AS (
    SELECT g, max(s) AS top FROM per_sequence GROUP BY g
), sequence_level AS (
    SELECT g,
    count(*) AS sequences,
    avg(mean_abs) AS sequence_mean_abs,
    avg({expm1("(2 * s)")}) AS chi2_sequence,
    avg({expm1(f"(2 * {clamped('s')})")}) AS chi2_sequence_clamped,
    sum(exp(s - top)) * sum(exp(s - top)) / (count(*) * sum(exp(2 * (s - top)))) AS ess_sequence,
    avg(left_log_ppl) AS left_log_ppl,
    avg(right_log_ppl) AS right_log_ppl,
    avg(exp(left_log_ppl)) AS left_ppl,
    avg(exp(right_log_ppl)) AS right_ppl,
    avg(difference) AS log_ppl_diff,
    avg(abs(difference)) AS log_ppl_abs_diff,
    max(difference) AS log_ppl_diff_max,
    min(difference) AS log_ppl_diff_min,
    avg(exp(difference)) AS ppl_ratio,
    sum(weight) / sum(n) AS mean_weight,
    CASE WHEN count(*) > 1 AND bool_and(isfinite(excess)) THEN {_stddev("excess")} * sqrt(count(*)) / sum(n) END
        AS mean_weight_se,
    {_z("excess")} AS mean_weight_z,
    {_z("(excess / n)")} AS mean_weight_z_sequence_means
    FROM per_sequence JOIN largest USING (g) GROUP BY g
), groups AS (
    SELECT {"DISTINCT g FROM base" if by_step else "0 AS g"}
)
SELECT {"g AS step, " if by_step else ""}
    coalesce(tokens, 0) AS tokens, coalesce(sequences, 0) AS sequences, coalesce(missing_left, 0) AS missing_left,
    coalesce(missing_right, 0) AS missing_right, coalesce(nonfinite, 0) AS nonfinite,
    t.* EXCLUDE (g) REPLACE (
        {defined("pearson_probs")} AS pearson_probs, {defined("pearson_logprobs")} AS pearson_logprobs
    ),
    s.* EXCLUDE (g, sequences)
FROM groups LEFT JOIN counted USING (g) LEFT JOIN token_level t USING (g) LEFT JOIN sequence_level s USING (g)
ORDER BY g
"""


def pair_metrics(run: Run, left: str = ROLLOUT, right: str = TRAINER, by_step: bool = True) -> pl.DataFrame:
    """All figures of two witnesses, d = right - left, as one row a step (column `step`) or one row for the run.

    `left` and `right` are columns of the view `witnesses` or letters (A, B, C, N, Z). A token counts only where it is
    in the loss mask and both log-probs are there and finite; the others are counted in `missing_left`, `missing_right`
    and `nonfinite`. What is not defined (no tokens, a constant side, one sequence) is NULL; an overflow is inf. No row
    for steps without masked-in tokens. Raises BadInput for a name that is no log-prob column.
    """
    return run.sql(_query(witness(left), witness(right), by_step))
