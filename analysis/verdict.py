"""The verdict about a run: can it be compared at all, is there a mismatch, and which side does it come from?

The order matters, each question assumes that the earlier ones passed: the columns are there; old is not a copy or a
fill; the size is above the noise floor; the rollout column is a true log-prob (E[w] = 1); old weights; then the sides.
"""

from __future__ import annotations

import math
from typing import Any

from timscope.analysis import wording
from timscope.analysis.columns import EXACT, ROLLOUT, TRAINER
from timscope.analysis.decomposition import decompose
from timscope.analysis.faults import find_faults
from timscope.analysis.findings import Cause, Diagnosis, Verdict
from timscope.analysis.frameworks import trl_gaps
from timscope.analysis.metrics import pair_metrics
from timscope.analysis.sides import name_side
from timscope.analysis.staleness import lag_cause
from timscope.data import Run

# Mean |A - C| in nats below which there is no mismatch to explain. Measured on SmolLM2-135M on a CPU, vLLM against
# transformers: 5.2e-6 with both in fp32 and 3.2e-2 to 4.0e-2 with bf16. 1e-4 is 20 times the first, 1/300 of the
# second.
NOISE_FLOOR = 1e-4
# |z| of E[w] = 1 above which the data is at fault. A clean simulated run of 4 sequences reached 2.1, the faults 13 and
# more.
MAX_Z = 5.0


def diagnose(run: Run) -> Diagnosis:
    """Diagnose a run from its recorded columns and, where there is one, its exact replay. Changes nothing on disk.

    Never raises for what the run holds: a run without rollout or trainer log-probs is `not-comparable` with `missing`
    set. `causes` names only what was really tested: zero-filled-old, old-copies-rollout, non-finite, stale-weights.
    """
    row = pair_metrics(run, by_step=False).row(0, named=True)
    metrics: dict[str, Any] = {"left": ROLLOUT, "right": TRAINER, **row}
    if missing := _missing(run):
        return _not_comparable(wording.missing(missing, row), [], metrics, missing)
    metrics["steps"] = run.sql("SELECT count(DISTINCT step) FROM witnesses WHERE mask").item()
    metrics["framework"] = _framework(run)
    reuse = _reuse(run)
    if row["mean_weight_z"] is not None:
        metrics["mean_weight_z"] = row["mean_weight_z"] / math.sqrt(reuse)
    causes = find_faults(run)
    for cause in causes:
        if cause.kind in ("zero-filled-old", "old-copies-rollout") and _decides(cause):
            return _not_comparable(wording.fault(cause), causes, metrics)
    decomposition = _decomposition(run, reuse)
    clean = row["mean_abs"] < NOISE_FLOOR
    if not clean and _invalid(metrics):
        return _not_comparable(wording.invalid_weights(metrics), causes, metrics, decomposition=decomposition)
    stale = None if clean else lag_cause(run)
    if stale is not None:
        causes.append(stale)
    verdict: Verdict = "clean" if clean else "staleness" if stale is not None else "tim"
    side = None if clean else decomposition.get("side")
    lines = wording.lines(run, verdict, metrics, decomposition, causes, NOISE_FLOOR)
    return Diagnosis(verdict, lines[0], side, causes, decomposition, metrics, lines)


def _missing(run: Run) -> tuple[str, ...]:
    """Columns without which nothing can be compared: absent as a whole, or never present on the same token."""
    row = run.sql(
        f"SELECT count({ROLLOUT}) AS a, count({TRAINER}) AS c, count(CASE WHEN mask THEN 1 END) AS m, "
        f"count(CASE WHEN mask AND isfinite({ROLLOUT}) AND isfinite({TRAINER}) THEN 1 END) AS both_there FROM witnesses"
    ).row(0, named=True)
    absent = tuple(name for name, key in ((ROLLOUT, "a"), (TRAINER, "c"), ("mask", "m")) if not row[key])
    return absent or (() if row["both_there"] else (ROLLOUT, TRAINER))


def _decides(cause: Cause) -> bool:
    """Zero fills spoil every figure; copies do so when every step is one."""
    return cause.kind == "zero-filled-old" or cause.value == 1.0


def _invalid(metrics: dict[str, Any]) -> bool:
    """E[w] != 1 by more than MAX_Z standard errors and by more than the noise floor; an infinite weight is one too."""
    z, mean = metrics["mean_weight_z"], metrics["mean_weight"]
    if mean is None or not math.isfinite(mean):
        return mean is not None
    enough = metrics["sequences"] >= wording.MIN_SEQUENCES
    return enough and z is not None and abs(z) > MAX_Z and abs(mean - 1) > NOISE_FLOOR


def _reuse(run: Run) -> float:
    """How often a rollout appears on average: copies of one rollout in several steps are no further evidence."""
    rows, distinct = run.sql(
        "SELECT count(*) AS n, count(DISTINCT coalesce(uid, concat('row', step, '-', sequence))) AS d FROM sequences"
    ).row(0)
    return float(rows / distinct) if distinct else 1.0


def _framework(run: Run) -> dict[str, Any]:
    """TRL's logged mean and max against ours: largest relative gap over steps, and where."""
    gaps = trl_gaps(run)
    if gaps is None or not gaps.height:
        return {}
    found: dict[str, Any] = {"name": "sampling/sampling_logp_difference", "steps": gaps.height}
    for what in ("mean", "max"):
        relative = (gaps[what] - gaps[f"{what}_logged"]).abs() / gaps[what].clip(1e-12)
        at = relative.arg_max()
        found[f"{what}_gap"] = relative.max()
        found[f"{what}_gap_step"] = gaps["step"][at] if at is not None else None
    return found


def _decomposition(run: Run, reuse: float) -> dict[str, Any]:
    """The overall row of `decompose` with side, interval and the replay it rests on; {} where nothing was replayed."""
    record = decompose(run, by_step=False).row(0, named=True)
    if not record["tokens"]:
        return {}
    side = name_side(record, math.sqrt(reuse))
    replay = run.speaking("exact")
    steps = run.sql(f"SELECT DISTINCT step FROM witnesses WHERE mask AND {EXACT} IS NOT NULL ORDER BY step")["step"]
    return {
        "replay": replay.name if replay else None,
        "certified": replay.certified if replay else None,
        "steps": steps.to_list(),
        "side": side.name,
        "why": side.why,
        "attributed_rollout_ci95": None if side.low is None else [side.low, side.high],
        "exact_noise_share": side.noise,
        **record,
    }


def _not_comparable(
    lines: list[str],
    causes: list[Cause],
    metrics: dict[str, Any],
    missing: tuple[str, ...] = (),
    decomposition: dict[str, Any] | None = None,
) -> Diagnosis:
    return Diagnosis("not-comparable", lines[0], None, causes, decomposition or {}, metrics, lines, missing)
