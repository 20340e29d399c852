"""What a fault hides: rules that cannot be judged, or not be believed, behind another one."""

from __future__ import annotations

from dataclasses import replace

from timscope.analysis.check.inputs import NAME as INPUTS
from timscope.analysis.check.penalties import NAME as PENALTIES
from timscope.analysis.check.report import Rule

_SEMANTIC = (
    "temperature-one-sided",
    "logprob-divided-by-temperature",
    "top-p-renormalisation",
    "top-k-renormalisation",
    PENALTIES,
)
_UNPAIRED = ("units", *_SEMANTIC, "outlier-sequences")


def merged(last: dict[str, Rule], failed: dict[str, Rule]) -> dict[str, Rule]:
    """The last round's answers, with the failures that were undone on the way; what fails still is told with them."""
    rules = last | failed
    for name in failed:
        if last[name].passed is False:
            rules[name] = rules[name].with_evidence(still_failing_after_repair=last[name].detail)
    return rules


def not_of_one_token(rules: dict[str, Rule], undone: list[str]) -> str | None:
    """The first pairing fault that was not undone."""
    for name in ("off-by-one", "inserted-token", INPUTS):
        rule, told = rules[name], rules[name].evidence
        if rule.passed is not False or name in undone or (told.get("mask") or {}).get("shifted"):
            continue
        if name != INPUTS or told.get("unrelated") or told.get("foreign_sequences"):
            return name
    return None


def without_hidden(rules: dict[str, Rule], unpaired: str | None) -> dict[str, Rule]:
    """What cannot be judged: everything on values behind a pairing fault that was not undone, and of the rules on
    sampling those behind the first that fails, as it acts on every token."""
    if unpaired is not None:
        by_ids = rules[INPUTS].evidence["sequences_with_both_prompts"] > 0
        names = _UNPAIRED if by_ids or unpaired == INPUTS else (*_UNPAIRED, INPUTS)
        return rules | {name: _first(rules[name], unpaired) for name in names}
    first = next((name for name in _SEMANTIC[:-1] if rules[name].passed is False), None)
    if first is not None:
        rules |= {name: _first(rules[name], first) for name in _SEMANTIC[_SEMANTIC.index(first) + 1 :]}
    return rules


def _first(rule: Rule, fault: str) -> Rule:
    return replace(rule, passed=None, detail=f"fix {fault} first")
