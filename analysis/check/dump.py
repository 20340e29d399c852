"""What a dump can do to a run: old log-probs filled with zeros or copied from the rollout, and missing parts."""

from __future__ import annotations

from typing import Any

import polars as pl

from timscope.analysis.check.report import ROWS, Rule
from timscope.analysis.columns import LOSS, ROLLOUT, TRAINER
from timscope.analysis.faults import copied_steps, old_copies_rollout, zero_filled, zero_steps
from timscope.analysis.findings import Cause, percent
from timscope.data import Run

Notes = dict[str, list[dict[str, Any]]]


def zero_filled_old(steps: pl.DataFrame, notes: Notes, fallback: str | None) -> tuple[Rule, list[int]]:
    """The rule and the steps it names. `fallback`: the column that the other rules use instead."""
    name = "zero-filled-old"
    cause = zero_filled(steps)
    told = notes.get(name, [])
    if cause is None and not told:
        return _absent(name, steps, "old_logprob is nowhere filled with zeros")
    evidence = _evidence(cause, told)
    share = f" in {percent(cause.value)} of steps" if cause else ""
    said = f"old_logprob is exactly 0.0 on every token{share}: no measurement{_instead(fallback)}"
    return Rule(name, False, said, evidence), zero_steps(steps)["step"].to_list()


def copied_old(run: Run, steps: pl.DataFrame, notes: Notes, fallback: str | None) -> tuple[Rule, list[int]]:
    """The rule and the steps it names; a warning where only some steps are copies.

    Equal columns of a run that says "recompute" and has no further witness are a copy where the two sides compute in
    different types; else two exact engines look the same, and nothing is decided.
    """
    name = "old-copies-rollout"
    manifest = run.manifest
    cause = old_copies_rollout(steps, manifest.algorithm.loss_mode)
    equal = copied_steps(steps)
    unseen = equal.height > 0 and not equal["in_loss"].sum() and not equal["replayed"].sum()
    types = manifest.rollout.dtype, manifest.trainer.dtype
    if cause is None and unseen:
        if None in types or types[0] == types[1]:
            said = f"equal bit for bit in {equal.height:,} steps: a copy, or exact engines; loss_logprob would tell"
            return Rule(name, None, said, {"missing": [LOSS], "number_of_steps": equal.height}), []
        cause = Cause(name, 0.9, equal.height / steps.height, {"number_of_steps": equal.height, "dtypes": list(types)})
    # The importer notes any equality; whether that is a copy or two engines that agree is judged here.
    if cause is None:
        rule, none = _absent(name, steps, "old_logprob is a measurement of its own")
        return (rule.with_evidence(imported=notes[name][:ROWS]) if name in notes else rule), none
    every = cause.value == 1.0
    said = f"old_logprob equals rollout_logprob bit for bit in {percent(cause.value)} of steps: a copy"
    said += _instead(fallback if every else None)
    evidence = _evidence(cause, notes.get(name, []))
    return Rule(name, False, said, evidence, "error" if every else "warn"), equal["step"].to_list()


def truncated_dump(run: Run, notes: Notes) -> Rule:
    """Parts that are missing: said by the importer, or steps that the reader had to leave out. A warning: what is
    there can be compared. The last step of a run that was killed is no finding."""
    name = "truncated-dump"
    told = notes.get(name, [])
    last = max(run.complete_steps, default=-1)
    inner = [step for step in run.incomplete_steps if step <= last]
    tail = [step for step in run.incomplete_steps if step > last]
    evidence: dict[str, Any] = {
        "complete_steps": len(run.complete_steps),
        "incomplete_steps": inner[:20],
        "unfinished_last_steps": tail[:20],
        "problems": run.problems[:ROWS],
        "imported": told[:ROWS],
    }
    said = [f"{entry['detail']} ({entry['count']:,})" for entry in told[:2]]
    if inner:
        said.append(f"{len(inner):,} steps before the last are incomplete and left out, the first is {inner[0]}")
    if len(tail) > 1:
        said.append(f"{len(tail):,} steps at the end are incomplete and left out")
    if said:
        return Rule(name, False, "; ".join(said), evidence, "warn")
    rest = f"; step {tail[0]} was never finished and does not count" if tail else ""
    return Rule(name, True, f"{len(run.complete_steps):,} steps, none missing inside{rest}", evidence, "warn")


def _evidence(cause: Cause | None, told: list[dict[str, Any]]) -> dict[str, Any]:
    evidence: dict[str, Any] = dict(cause.evidence) if cause else {}
    return {**evidence, "imported": told[:ROWS]} if told else evidence


def _absent(name: str, steps: pl.DataFrame, said: str) -> tuple[Rule, list[int]]:
    if not steps.height:
        return Rule(name, None, f"needs {ROLLOUT}, {TRAINER}", {"missing": [TRAINER]}), []
    return Rule(name, True, said, {"steps": steps.height}), []


def _instead(fallback: str | None) -> str:
    return f"; the other rules use {fallback}" if fallback == LOSS else ""
