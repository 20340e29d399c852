"""`run_checks`: every rule that needs no replay, in the order in which faults should be fixed, and the gate."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from timscope.analysis.check.artefacts import estimator_artefact
from timscope.analysis.check.dump import Notes, truncated_dump
from timscope.analysis.check.facts import imported, vocabulary
from timscope.analysis.check.integrity import integrity
from timscope.analysis.check.repair import Judged, judge
from timscope.analysis.check.report import ROWS, Report, Rule
from timscope.analysis.check.scan import Compared, Log, scan
from timscope.analysis.check.semantics import Semantics
from timscope.analysis.check.sequence_facts import sequence_facts
from timscope.analysis.check.source import Source, no_pair, source, without_fakes
from timscope.analysis.check.structure import Structure
from timscope.analysis.check.value_rules import non_finite, placeholder, storage_dtype
from timscope.analysis.columns import ROLLOUT, TRAINER
from timscope.analysis.findings import nats
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
# These read an importer's findings themselves.
_OWN_NOTES = frozenset(
    {"integrity", "non-finite", "placeholder", "zero-filled-old", "old-copies-rollout", "truncated-dump"}
)
# |z| of E[w] = 1 above which r is no log-prob of the sampled token, and the least distance from 1 that counts: a clean
# simulated run of 4 sequences reached a |z| of 2.1.
MAX_Z, MIN_DISTANCE = 5.0, 1e-4


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
        "placeholder": placeholder(judged.values, notes.get("placeholder", [])),
        "storage-dtype": storage_dtype(judged.values, judged.figures.mean_abs),
        "estimator-artefact": estimator_artefact(
            run, steps, sequences, log.masked_advantages, pair.trainer == TRAINER and not pair.missing
        ),
        "zero-filled-old": zero_filled,
        "old-copies-rollout": copied,
        "truncated-dump": truncated_dump(run, notes),
    }
    if pair.missing:
        for name in judged.rules:
            if rules[name].passed is not False and name != "different-inputs":
                rules[name] = no_pair(name, pair.missing)
    ordered = [_noted(rules[name], notes) for name in RULES]
    context = _context(pair, judged, notes)
    comparable, reason = _gate(ordered, pair, judged.figures)
    return Report(comparable, reason, ordered, context)


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


def _context(pair: Source, judged: Judged, notes: Notes) -> dict[str, Any]:
    s = judged.figures
    weight = {
        "mean": s.mean_weight,
        "se": s.weight_se,
        "z": s.weight_z,
        "valid": None if _z(s) is None else not _invalid(s),
    }
    return {
        "left": ROLLOUT,
        "right": pair.trainer,
        "missing": list(pair.missing),
        "tokens": s.tokens,
        "sequences": s.sequences,
        "mean_abs": s.mean_abs,
        "rms": s.rms,
        "mean_weight": weight,
        "undone": judged.undone,
        "imported": {kind: entries[:ROWS] for kind, entries in notes.items() if kind not in RULES},
    }


def _z(s: Semantics) -> float | None:
    return None if s.mean_weight is None else s.weight_z if math.isfinite(s.mean_weight) else math.inf


def _invalid(s: Semantics) -> bool:
    z = _z(s)
    return z is not None and s.mean_weight is not None and abs(z) > MAX_Z and abs(s.mean_weight - 1) > MIN_DISTANCE


def _gate(rules: list[Rule], pair: Source, s: Semantics) -> tuple[bool, str]:
    """Whether the run is comparable, and why in one line."""
    blocking = [rule.name for rule in rules if rule.blocks]
    if blocking:
        return False, ", ".join(blocking)
    if pair.missing:
        return False, f"{' and '.join(pair.missing)} missing: nothing to compare"
    if not s.tokens:
        return False, f"no token has both {ROLLOUT} and {pair.trainer}"
    if _invalid(s):
        mean, z = s.mean_weight or 0.0, _z(s) or 0.0
        return False, f"E[w] = {mean:.4g} (z = {z:+.0f}) is not 1: rollout_logprob is no log-prob of the sampled tokens"
    said = f"{s.tokens:,} tokens, {pair.trainer} against {ROLLOUT}: mean |d| {nats(s.mean_abs)}"
    if s.mean_weight is not None and s.weight_z is not None:
        said += f", E[w] {s.mean_weight:.4f} (z {s.weight_z:+.1f})"
    warned = [rule.name for rule in rules if rule.passed is False]
    if any(rule.name == "old-copies-rollout" and rule.passed is None for rule in rules):
        warned.append("old-copies-rollout (not decided)")
    return True, said + (f"; mind {', '.join(warned)}" if warned else "")
