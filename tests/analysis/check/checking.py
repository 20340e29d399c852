"""What the tests of this folder ask of a report."""

from __future__ import annotations

from timscope.analysis.check import Report


def failed(report: Report) -> set[str]:
    """Names of the rules that fail, warnings included."""
    return {rule.name for rule in report.rules if rule.passed is False}


def blocked(report: Report, *names: str) -> None:
    """Exactly these rules fail, and the run is not comparable."""
    assert failed(report) == set(names), {r.name: r.detail for r in report.rules if r.passed is False}
    assert not report.comparable
    assert all(name in report.reason for name in names)


def warned(report: Report, *names: str) -> None:
    """Exactly these rules fail, all of them only warn, and the run is comparable."""
    assert failed(report) == set(names), {r.name: r.detail for r in report.rules if r.passed is False}
    assert report.comparable, report.reason
    assert all(report.rule(name).severity == "warn" for name in names)


def sound(report: Report) -> None:
    """No rule fails and the run is comparable."""
    assert failed(report) == set(), {r.name: r.detail for r in report.rules if r.passed is False}
    assert report.comparable, report.reason
