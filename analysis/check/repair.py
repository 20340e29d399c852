"""The rules that compare r with t, judged again after each fault that can be undone in memory.

Two faults can sit in one run, and the first hides the second: behind a shift everything looks wrong. So the first fault
that can be undone is undone (t read at another lag, r scaled back, rows or ids left out), the tokens are read again,
and the rules get another look. Nothing on disk changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import polars as pl

from timscope.analysis.check.inputs import different_inputs
from timscope.analysis.check.outliers import outlier_sequences
from timscope.analysis.check.pairing import inserted, off_by_one
from timscope.analysis.check.penalties import NAME as PENALTIES
from timscope.analysis.check.penalties import penalties
from timscope.analysis.check.plan import Plan
from timscope.analysis.check.report import Rule
from timscope.analysis.check.sampling import temperature, units
from timscope.analysis.check.scan import Compared, Log, scan
from timscope.analysis.check.semantics import Semantics, semantics
from timscope.analysis.check.sequence_facts import reuse
from timscope.analysis.check.source import Source
from timscope.analysis.check.truncation import divided, truncation
from timscope.analysis.check.values import Values
from timscope.data import Run

_SEMANTIC = (
    "temperature-one-sided",
    "logprob-divided-by-temperature",
    "top-p-renormalisation",
    "top-k-renormalisation",
    PENALTIES,
)
_UNPAIRED = ("units", *_SEMANTIC, "outlier-sequences")
MAX_ROUNDS = 4
# Sequences that may be left out: of what remains of fewer nothing can be said about the run.
MOST = 0.5


@dataclass(frozen=True)
class Judged:
    """Rules by name after the last round, that round's figures, and what was undone."""

    rules: dict[str, Rule]
    figures: Semantics
    values: Values
    undone: list[str]


def judge(run: Run, source: Source, sequences: pl.DataFrame, log: Log, found: Compared) -> Judged:
    """Judge a first scan, and undo faults until none is left that can be undone, reading the tokens again each time."""
    plan, failed, undone = source.plan, dict[str, Rule](), list[str]()
    before: float | None = None
    while True:
        rules, repair, figures = _round(run, source, sequences, log, found)
        for name in [n for n in undone if n in failed]:
            if "mean_abs_after_repair" not in failed[name].evidence:
                failed[name] = failed[name].with_evidence(mean_abs=before, mean_abs_after_repair=figures.mean_abs)
        before = figures.mean_abs
        step = next(((n, r) for n, r in repair if rules[n].passed is False and n not in failed), None)
        if step is None or len(undone) + 1 >= MAX_ROUNDS:
            return Judged(_after(_merged(rules, failed), undone), figures, found.values, undone)
        name, change = step
        failed[name] = rules[name]
        undone.append(name)
        plan = change(plan)
        found = scan(run, source.there, plan)


Repairs = list[tuple[str, Callable[[Plan], Plan]]]


def _round(
    run: Run, source: Source, sequences: pl.DataFrame, log: Log, found: Compared
) -> tuple[dict[str, Rule], Repairs, Semantics]:
    """All rules of one scan, how to undo those that can be, and the figures."""
    table, lags = found.sums.table(), found.lags.table()
    copies = reuse(sequences)
    s = semantics(table, found.sample, copies)
    said = source.declared
    split, pieces = inserted(lags)
    shift, lag, misplaced = off_by_one(lags, log.mask.result(), len(pieces | found.values.plan.left_out))
    scaled = units(s, said)
    tempered, ratio = temperature(s, said), divided(s, said)
    top_p, top_k = truncation(s, said, ratio)
    biased = penalties(s, table, found.ids, said, copies)
    rules = {
        "units": scaled,
        "off-by-one": shift,
        "inserted-token": split,
        "different-inputs": different_inputs(run, sequences, found.profile),
        "temperature-one-sided": tempered,
        "logprob-divided-by-temperature": ratio,
        "top-p-renormalisation": top_p,
        "top-k-renormalisation": top_k,
        PENALTIES: biased,
        "outlier-sequences": outlier_sequences(table, found.profile.expected(), sequences),
    }
    repairs: Repairs = []
    if lag:
        repairs.append(("off-by-one", lambda plan: replace(plan, lag=plan.lag + lag)))
    elif misplaced and shift.evidence["share_shifted"] <= MOST:
        repairs.append(("off-by-one", lambda plan: replace(plan, left_out=plan.left_out | misplaced)))
    if pieces and split.evidence["share_split"] <= MOST:
        repairs.append(("inserted-token", lambda plan: replace(plan, left_out=plan.left_out | pieces)))
    if scaled.passed is False:
        factor = float(scaled.evidence["factor"])
        repairs.append(("units", lambda plan: replace(plan, scale=plan.scale * factor)))
    ids = tuple(int(entry["token_id"]) for entry in biased.evidence.get("ids", []))
    if ids:
        repairs.append((PENALTIES, lambda plan: replace(plan, token_ids=plan.token_ids + ids)))
    return rules, repairs, s


def _merged(last: dict[str, Rule], failed: dict[str, Rule]) -> dict[str, Rule]:
    """The last round's answers, with the failures that were undone on the way; what fails still is told with them."""
    rules = last | failed
    for name in failed:
        if last[name].passed is False:
            rules[name] = rules[name].with_evidence(still_failing_after_repair=last[name].detail)
    return rules


def _after(rules: dict[str, Rule], undone: list[str]) -> dict[str, Rule]:
    """What cannot be judged: everything on values behind a pairing fault that was not undone, and of the rules on
    sampling those behind the first that fails, as it acts on every token."""
    pairing = (name for name in ("off-by-one", "inserted-token") if rules[name].passed is False and name not in undone)
    unpaired = next((name for name in pairing if not (rules[name].evidence.get("mask") or {}).get("shifted")), None)
    if unpaired is not None:
        by_ids = rules["different-inputs"].evidence["sequences_with_both_prompts"] > 0
        names = _UNPAIRED if by_ids else (*_UNPAIRED, "different-inputs")
        return rules | {name: _first(rules[name], unpaired) for name in names}
    first = next((name for name in _SEMANTIC[:-1] if rules[name].passed is False), None)
    if first is not None:
        rules |= {name: _first(rules[name], first) for name in _SEMANTIC[_SEMANTIC.index(first) + 1 :]}
    return rules


def _first(rule: Rule, fault: str) -> Rule:
    return replace(rule, passed=None, detail=f"fix {fault} first")
