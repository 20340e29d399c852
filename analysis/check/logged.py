"""The framework's own mismatch metrics against the same figures from the recorded tokens.

A gap means that the number people watched is not what its name says (masked rows counted, another mask, another pair),
or that the log does not hold what the trainer had. Some steps spread over the run are enough to see it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl

from timscope.analysis.check.report import ROWS
from timscope.analysis.columns import ROLLOUT, TRAINER
from timscope.analysis.formulas import pair, summarise
from timscope.analysis.frameworks import TRL_MAX, TRL_MEAN, trl_logp_difference
from timscope.data import Run

# Name of the logged series -> name in `formulas.summarise`. Weighting by framework: facts in its docstrings.
_EQUAL = {
    "policy/rollout_train_logprobs_abs_diff_mean": "mean_abs",
    "policy/rollout_train_logprobs_abs_diff_max": "max_abs",
    "train/train_rollout_logprob_abs_diff": "sequence_mean_abs",
    "training/rollout_probs_diff_mean": "mean_abs_prob_diff",
    "train/token_mult_prob_error": "mean_exp_abs",
    "sampler_trainer/logp_diff_mean": "mean_abs",
    "sampler_trainer/logp_diff_max": "max_abs",
    "rollout_corr/kl": "k1",
    "rollout_corr/k3_kl": "k3",
    "rollout_corr/chi2_token": "chi2_token_clamped",
    "rollout_corr/training_ppl": "right_ppl",
    "rollout_corr/rollout_ppl": "left_ppl",
    "rollout_corr/training_log_ppl": "right_log_ppl",
    "rollout_corr/rollout_log_ppl": "left_log_ppl",
    "rollout_corr/log_ppl_diff": "log_ppl_diff",
    "rollout_corr/log_ppl_abs_diff": "log_ppl_abs_diff",
    "rollout_corr/ppl_ratio": "ppl_ratio",
}
# Relative gaps that count. TRL's mean over ranks is recomputed exactly; others average over micro-batches, too.
_TOLERANCE = {TRL_MEAN: 1e-3, TRL_MAX: 1e-3}
_LOOSE, _TINY = 0.05, 1e-6
MAX_STEPS, MAX_TOKENS = 64, 500_000


def metric_gaps(run: Run, steps: pl.DataFrame) -> dict[str, dict[str, Any]]:
    """By series: steps compared, how many disagree, the largest relative gap, and the first rows (step, logged, ours).

    A series that any step disagrees with also has `diluted`: whether counting fully masked rows explains it.
    """
    names = [n for n in (*_EQUAL, TRL_MEAN, TRL_MAX) if n in steps.columns and steps[n].count()]
    if not names:
        return {}
    wanted = _spread(run)
    found: dict[str, dict[str, Any]] = {}
    rows = {row["step"]: row for row in _of_one_step(steps.sort("step"), names).iter_rows(named=True)}
    for step, ours, masked in _ours(run, wanted):
        for name in names:
            logged, own = rows.get(step, {}).get(name), ours.get(name)
            if logged is None or own is None or not math.isfinite(logged) or not math.isfinite(own[0]):
                continue
            value, sequences = own
            gap = abs(logged - value) / max(abs(value), abs(logged), 1e-300)
            wrong = gap > _TOLERANCE.get(name, _LOOSE) and abs(logged - value) > _TINY
            entry = found.setdefault(name, {"steps": 0, "differ": 0, "largest_gap": 0.0, "rows": []})
            entry["steps"] += 1
            entry["differ"] += wrong
            entry["largest_gap"] = max(entry["largest_gap"], gap)
            if wrong and len(entry["rows"]) < ROWS:
                entry["rows"].append({"step": step, "logged": logged, "recomputed": value})
                if masked:
                    entry["diluted"] = _diluted(name, logged, value, sequences, masked)
    return found


def _of_one_step(steps: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    """The series where the steps before and after have a value too. Elsewhere it may be a mean over all steps since
    the last one that was logged (logging_steps), or of a batch that several steps share (steps_per_generation)."""
    there = [pl.col(n).is_not_null() for n in names]
    beside = [t.shift(1, fill_value=True) & t.shift(-1, fill_value=True) for t in there]
    kept = [pl.when(b).then(pl.col(n)).alias(n) for n, b in zip(names, beside, strict=True)]
    return steps.select("step", *kept)


def _diluted(name: str, logged: float, value: float, sequences: int, masked: int) -> bool:
    """Whether `masked` further rows with log-prob 0 turn ours into theirs (a perplexity of 1, a difference of 0)."""
    other = 1.0 if name.endswith(("_ppl", "ppl_ratio")) and "log_ppl" not in name else 0.0
    mixed = (sequences * value + masked * other) / (sequences + masked)
    return abs(logged - mixed) <= 1e-3 * max(abs(mixed), _TINY)


def _spread(run: Run) -> list[int]:
    """Steps spread evenly over the run, few enough to be read again."""
    sizes = run.sql("SELECT step, count(*) AS n FROM tokens GROUP BY step ORDER BY step")
    n = min(sizes.height, MAX_STEPS)
    while n > 1:
        chosen = np.unique(np.linspace(0, sizes.height - 1, n).astype(int))
        if int(sizes["n"].gather(chosen).sum()) <= MAX_TOKENS:
            break
        n //= 2
    chosen = np.unique(np.linspace(0, max(sizes.height - 1, 0), n).astype(int))
    return sizes["step"].gather(chosen).to_list() if sizes.height else []


def _ours(run: Run, steps: list[int]) -> list[tuple[int, dict[str, tuple[float, int]], int]]:
    """By step: our value of every series with the number of sequences behind it, and how many rows are all masked."""
    if not steps:
        return []
    inside = ", ".join(map(str, steps))
    tokens = run.sql(
        f"SELECT t.step, t.sequence, s.rank, coalesce(t.mask, false) AS mask, t.{ROLLOUT}, t.{TRAINER} FROM tokens t "
        f"LEFT JOIN (SELECT step, sequence, any_value(rank) AS rank FROM sequences WHERE step IN ({inside}) "
        f"GROUP BY ALL) s USING (step, sequence) WHERE t.step IN ({inside})"
    )
    trl = {row["step"]: row for row in trl_logp_difference(tokens).to_dicts()}
    out = []
    for (step,), frame in tokens.group_by("step", maintain_order=True):
        left, right = (frame[c].cast(pl.Float64).fill_null(math.nan).to_numpy() for c in (ROLLOUT, TRAINER))
        p = pair(left, right, frame["mask"].to_numpy(), frame["sequence"].to_numpy())
        if not p.left.size:
            continue
        summary = summarise(p)
        ours = {name: (summary[key], p.sequences) for name, key in _EQUAL.items()}
        ours |= {TRL_MEAN: (trl[step]["mean"], p.sequences), TRL_MAX: (trl[step]["max"], p.sequences)}
        out.append((int(step), ours, frame["sequence"].n_unique() - p.sequences))
    return sorted(out)
