"""`run_checks`: every rule that needs no replay, in the order in which faults should be fixed, and the gate."""

from __future__ import annotations

from dataclasses import replace

from timscope.analysis.check.artefacts import estimator_artefact
from timscope.analysis.check.conclusion import conclude, context
from timscope.analysis.check.dump import Notes, truncated_dump
from timscope.analysis.check.facts import imported, vocabulary
from timscope.analysis.check.integrity import integrity
from timscope.analysis.check.placeholders import placeholder
from timscope.analysis.check.repair import judge
from timscope.analysis.check.report import ROWS, Report, Rule
from timscope.analysis.check.scan import Compared, Log, scan
from timscope.analysis.check.sequence_facts import sequence_facts
from timscope.analysis.check.source import Source, no_pair, source, without_fakes
from timscope.analysis.check.structure import Structure
from timscope.analysis.check.value_rules import non_finite, storage_dtype
from timscope.analysis.columns import TRAINER
from timscope.data import Run

RULES = (
    "integrity",
    "non-finite",
    "placeholder",
    "storage-dtype",
    "units",
    "off-by-one",
    "inserted-token",
    "different-inputs",
    "temperature-one-sided",
    "logprob-divided-by-temperature",
    "top-p-renormalisation",
    "top-k-renormalisation",
    "penalties",
    "estimator-artefact",
    "outlier-sequences",
    "zero-filled-old",
    "old-copies-rollout",
    "truncated-dump",
)
# These can say something of one column alone.
_OF_VALUES = ("non-finite", "placeholder", "storage-dtype", "zero-filled-old", "old-copies-rollout")
# These read an importer's findings themselves.
_OWN_NOTES = frozenset(
    {"integrity", "non-finite", "placeholder", "zero-filled-old", "old-copies-rollout", "truncated-dump"}
)


def run_checks(run: Run) -> Report:
    """All rules of RULES, in that order; reads the tokens once, and again for each fault that hides others.

    Needs no replay and changes nothing on disk. A run without the columns to compare is not comparable, its rules are
    None where they need them. Raises BadInput only where the run's files cannot be read.
    """
    notes = imported(run)
    sequences = sequence_facts(run)
    pair = source(run)
    log, found = _first_scan(run, pair)
    chosen, zero_filled, copied = without_fakes(run, pair, log.copies, notes)
    if chosen != pair:
        pair = chosen
        log, found = _first_scan(run, pair)
    judged = judge(run, pair, sequences, log, found)
    steps = run.steps()
    rules = {
        **judged.rules,
        "integrity": integrity(run, log.structure, sequences, notes.get("integrity", [])),
        "non-finite": non_finite(judged.values, pair.declared, notes.get("non-finite", [])),
        "placeholder": placeholder(judged.values, notes.get("placeholder", []), judged.unpaired),
        "storage-dtype": storage_dtype(judged.values, judged.figures.mean_abs),
        "estimator-artefact": estimator_artefact(
            run, steps, sequences, log.masked_advantages, pair.trainer == TRAINER and not pair.missing
        ),
        "zero-filled-old": zero_filled,
        "old-copies-rollout": copied,
        "truncated-dump": truncated_dump(run, notes),
    }
    if pair.missing:
        for name in (*judged.rules, *_OF_VALUES):
            asked = name in _OF_VALUES and rules[name].passed is not None
            if rules[name].passed is not False and name != "different-inputs" and not asked:
                rules[name] = no_pair(name, pair.missing)
    ordered = [_noted(rules[name], notes) for name in RULES]
    comparable, reason, advice = conclude(run, ordered, pair, judged)
    return Report(comparable, reason, ordered, context(pair, judged, notes, RULES), advice)


def _first_scan(run: Run, pair: Source) -> tuple[Log, Compared]:
    log = Log(Structure(vocabulary(run.manifest)))
    return log, scan(run, pair.there, pair.plan, log)


def _noted(rule: Rule, notes: Notes) -> Rule:
    """An importer's finding of a rule's kind counts as that rule's failure."""
    told = notes.get(rule.name, [])
    if not told or rule.name in _OWN_NOTES:
        return rule
    failed = rule if rule.passed is False else replace(rule, passed=False, detail=str(told[0]["detail"]))
    return failed.with_evidence(imported=told[:ROWS])
