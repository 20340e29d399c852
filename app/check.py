"""`timscope check`: is a mismatch number of this run meaningful at all?"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer
from rich.markup import escape

from timscope.app.output import Json, RunPath, SkipDamaged, console, number, print_json
from timscope.data import open_run

if TYPE_CHECKING:
    from timscope.analysis.check import Report, Rule

_COLOURS = {"ok": "green", "FAILED": "bold red", "warn": "yellow", "not decidable": "dim"}
_NAME, _STATE, _WIDTH = 32, 15, 100
_SHORT = {"rollout_logprob": "rollout", "old_logprob": "old", "loss_logprob": "loss", "token_id": "token"}


def check(run_path: RunPath, skip_damaged: SkipDamaged = False, as_json: Json = False) -> None:
    """Is a mismatch number of this run meaningful at all? Exit 0 comparable, 1 not comparable, 2 bad input."""
    from timscope.analysis.check import run_checks

    with open_run(run_path, skip_damaged=skip_damaged) as run:
        report = run_checks(run)
        problems = list(run.problems)
    if as_json:
        print_json({**report.to_json(), "problems": problems})
    else:
        for line in _lines(report, problems):
            console.print(line, soft_wrap=True)
    raise typer.Exit(0 if report.comparable else 1)


def _lines(report: Report, problems: list[str]) -> Iterator[str]:
    """The table, notes of the reader, and the verdict; none wider than 100 columns."""
    for rule in report.rules:
        yield from _rule(rule)
    yield ""
    for problem in problems[:5]:
        yield from _wrapped("[yellow]note:[/yellow] ", problem, 6)
    if len(problems) > 5:
        yield f"[yellow]note:[/yellow] {len(problems) - 5:,} more"
    word = "[bold green]comparable:[/bold green] " if report.comparable else "[bold red]not comparable:[/bold red] "
    yield from _wrapped(word, report.reason, 2)


def _rule(rule: Rule) -> Iterator[str]:
    state = rule.state
    indent = _NAME + _STATE
    first, *rest = textwrap.wrap(rule.detail, _WIDTH - indent) or [""]
    yield f"{rule.name:<{_NAME}}[{_COLOURS[state]}]{state:<{_STATE}}[/]{escape(first)}".rstrip()
    for line in rest:
        yield " " * indent + escape(line)
    if rule.passed is False:
        for row in _rows(rule.evidence)[:3]:
            for line in textwrap.wrap(_row(row), _WIDTH - 6, subsequent_indent="  "):
                yield f"      [dim]{escape(line)}[/dim]"


def _rows(evidence: dict[str, Any]) -> list[dict[str, Any]]:
    """The evidence rows of a rule, wherever it keeps them: rows of the run, or what an importer noted."""
    rows: list[dict[str, Any]] = list(evidence.get("rows", []))
    for nested in ("violations", "metrics"):
        for entry in evidence.get(nested, {}).values():
            rows += entry.get("rows") or entry.get("findings") or []
    for nested in ("advantages", "masked_advantages"):
        rows += (evidence.get(nested) or {}).get("rows", [])
    return rows or list(evidence.get("ids", [])) or list(evidence.get("imported", []))


def _row(row: dict[str, Any]) -> str:
    """ "step 3, sequence 5, position 41, token 34, rollout -1.17, old -0.105": counts whole, figures in four digits."""
    shown = {key: value for key, value in row.items() if value is not None and key != "entropy"}
    if shown.get("loss_logprob") == shown.get("old_logprob"):
        shown.pop("loss_logprob", None)
    return ", ".join(f"{_SHORT.get(key, key)} {_value(value)}" for key, value in shown.items())


def _value(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return str(value) if isinstance(value, list | dict) else number(value)


def _wrapped(head: str, text: str, indent: int) -> list[str]:
    """A coloured word and a text, wrapped at 100 columns."""
    plain = len(head.split("]")[1].split("[")[0]) + 1
    first, *rest = textwrap.wrap(text, _WIDTH, initial_indent="x" * plain, subsequent_indent=" " * indent) or [
        "x" * plain
    ]
    return [head + escape(first[plain:]), *map(escape, rest)]
