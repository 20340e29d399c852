"""The rules that compare r with t, judged again after each fault that can be undone in memory.

Two faults can sit in one run, and the first hides the second: behind a shift everything looks wrong. So the first fault
that can be undone is undone (t read at another lag, r scaled back, rows or ids left out), the tokens are read again,
and the rules get another look. Nothing on disk changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import polars as pl

from timscope.analysis.check.hidden import merged, not_of_one_token, without_hidden
from timscope.analysis.check.ids import contexts
from timscope.analysis.check.inputs import NAME as INPUTS
from timscope.analysis.check.inputs import different_inputs
from timscope.analysis.check.outliers import outlier_sequences
from timscope.analysis.check.pairing import inserted, off_by_one
from timscope.analysis.check.penalties import NAME as PENALTIES
from timscope.analysis.check.penalties import penalties
from timscope.analysis.check.plan import Plan
from timscope.analysis.check.relation import relation
from timscope.analysis.check.report import Rule
from timscope.analysis.check.sampling import temperature, units
from timscope.analysis.check.scan import Compared, Log, scan
from timscope.analysis.check.semantics import Semantics, semantics
from timscope.analysis.check.sequence_facts import reuse
from timscope.analysis.check.source import Source
from timscope.analysis.check.truncation import divided, truncation
from timscope.analysis.check.values import Values
from timscope.analysis.columns import TRAINER
from timscope.data import Run

MAX_ROUNDS = 4
# Sequences that may be left out: of what remains of fewer nothing can be said about the run.
MOST = 0.5


@dataclass(frozen=True)
class Judged:
    """Rules by name after the last round, that round's figures, what was undone, and the rule that says that r and t
    are not of the same tokens, where that could not be undone."""

    rules: dict[str, Rule]
    figures: Semantics
    values: Values
    undone: list[str]
    unpaired: str | None


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
            rules = merged(rules, failed)
            unpaired = not_of_one_token(rules, undone)
            return Judged(without_hidden(rules, unpaired), figures, found.values, undone, unpaired)
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
    related = relation(lags, found.sample, s)
    scaled = units(s, said)
    tempered, ratio = temperature(s, said), divided(s, said)
    top_p, top_k = truncation(s, said, ratio)
    trainer = source.trainer or TRAINER
    biased = penalties(s, table, found.ids, said, copies, lambda ids: contexts(run, trainer, ids))
    rules = {
        "units": scaled,
        "off-by-one": shift,
        "inserted-token": split,
        INPUTS: different_inputs(run, sequences, found.profile, related),
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
    if related.foreign and related.share <= MOST:
        foreign = set(related.foreign)
        repairs.append((INPUTS, lambda plan: replace(plan, left_out=plan.left_out | foreign)))
    if scaled.passed is False:
        factor = float(scaled.evidence["factor"])
        repairs.append(("units", lambda plan: replace(plan, scale=plan.scale * factor)))
    ids = tuple(int(entry["token_id"]) for entry in biased.evidence.get("ids", []))
    if ids:
        repairs.append((PENALTIES, lambda plan: replace(plan, token_ids=plan.token_ids + ids)))
    return rules, repairs, s
