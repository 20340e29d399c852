"""What a check says: one `Rule` a fault kind, and the gate over all of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from timscope.analysis.check.remedies import REMEDIES
from timscope.analysis.findings import plain

Severity = Literal["error", "warn"]

# Evidence shows where a fault begins, not all of it.
ROWS = 3


@dataclass(frozen=True)
class Rule:
    """One rule's answer.

    `passed`: True, False, or None where the run cannot decide it; then `detail` names the column or manifest field that
    is missing, or the fault that has to be fixed first. `severity` says what a failure means: an "error" makes every
    mismatch number of the run meaningless, a "warn" does not. `evidence` holds the figures that decided, and up to
    three rows (step, sequence, position and the values there). `remedy` says what to do about a failure.
    """

    name: str
    passed: bool | None
    detail: str
    evidence: dict[str, Any] = field(default_factory=dict)
    severity: Severity = "error"

    @property
    def state(self) -> Literal["ok", "FAILED", "warn", "not decidable"]:
        """The answer in one word, as the command line prints it."""
        if self.passed is None:
            return "not decidable"
        return "ok" if self.passed else "FAILED" if self.severity == "error" else "warn"

    @property
    def remedy(self) -> str | None:
        """What to do, in one line; None where nothing failed."""
        return REMEDIES.get(self.name) if self.passed is False else None

    @property
    def blocks(self) -> bool:
        """Whether this rule alone makes the run not comparable."""
        return self.passed is False and self.severity == "error"

    def to_json(self) -> dict[str, Any]:
        """A dict for json.dumps: name, passed, severity, detail, evidence, remedy."""
        said = {"name": self.name, "passed": self.passed, "severity": self.severity, "detail": self.detail}
        return {**said, "evidence": _json(self.evidence), "remedy": self.remedy}

    def with_evidence(self, **more: Any) -> Rule:
        """The same answer with further figures."""
        return replace(self, evidence={**self.evidence, **more})


@dataclass(frozen=True)
class Report:
    """Every rule in the order in which faults should be fixed, and whether mismatch numbers mean anything at all.

    `reason` is one line, `advice` another: what to do next. `context` has the figures that belong to no single rule:
    the columns compared, how many tokens and sequences, mean |d|, and the test of E[w] = 1.
    """

    comparable: bool
    reason: str
    rules: list[Rule]
    context: dict[str, Any] = field(default_factory=dict)
    advice: str = ""

    def rule(self, name: str) -> Rule:
        """The rule called `name`; KeyError where there is none."""
        for rule in self.rules:
            if rule.name == name:
                return rule
        raise KeyError(name)

    def to_json(self) -> dict[str, Any]:
        """A dict for json.dumps: comparable, reason, advice, rules, context."""
        rules = [rule.to_json() for rule in self.rules]
        said = {"comparable": self.comparable, "reason": self.reason, "advice": self.advice}
        return {**said, "rules": rules, "context": _json(self.context)}


def _json(value: Any) -> Any:
    """`plain` after numpy's numbers and arrays have become Python's."""
    if isinstance(value, dict):
        return {str(k): _json(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_json(v) for v in value]
    return plain(value.tolist() if isinstance(value, np.generic | np.ndarray) else value)
