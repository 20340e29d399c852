"""`timscope check`: is a mismatch number of this run meaningful at all?"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.text import Text

from timscope.app.output import Json, RunPath, SkipDamaged, console, number, print_json
from timscope.data import Run, open_run
from timscope.data.errors import BadInput

if TYPE_CHECKING:
    from timscope.analysis.check import Report, Rule

_COLOURS = {"ok": "green", "FAILED": "bold red", "warn": "yellow", "not decidable": "dim"}
_NAME, _STATE, _WIDTH = 32, 15, 100
_SHORT = {"rollout_logprob": "rollout", "old_logprob": "old", "loss_logprob": "loss", "token_id": "token"}
_TOGETHER = 3  # rules that lack the same thing are told in one line from this number on


def check(
    run_path: RunPath,
    only: Annotated[
        list[str] | None,
        typer.Option("--rule", metavar="NAME", help="Show this rule alone, with all its evidence; may be repeated."),
    ] = None,
    skip_damaged: SkipDamaged = False,
    as_json: Json = False,
) -> None:
    """Is a mismatch number of this run meaningful at all? Exit 0 comparable, 1 not comparable, 2 bad input."""
    from timscope.analysis.check import RULES, run_checks

    for name in only or []:
        if name not in RULES:
            raise BadInput(f"{name!r} is no rule: there are {', '.join(RULES)}")
    with open_run(run_path, skip_damaged=skip_damaged) as run:
        if not run.complete_steps:
            raise BadInput(_unfinished(run))
        report = run_checks(run)
        problems = list(run.problems)
    if as_json:
        said = report.to_json()
        said["rules"] = [rule for rule in said["rules"] if not only or rule["name"] in only]
        print_json({**said, "problems": problems})
    else:
        shown = [rule for rule in report.rules if not only or rule.name in only]
        for line in (*_head(report, run_path), *_table(shown, whole=bool(only)), *_tail(report, problems)):
            console.print(line, soft_wrap=True)
    raise typer.Exit(0 if report.comparable else 1)


def _unfinished(run: Run) -> str:
    begun = len(run.incomplete_steps)
    why = f": {begun:,} begun, the first is left out because {run.problems[0]}" if begun and run.problems else ""
    return f"{run.path} holds no finished step{why or ': let the job finish its first one, or give another run'}"


def _head(report: Report, run_path: str) -> Iterator[str]:
    """What the letters in the table mean."""
    yield f"[bold]{escape(str(run_path))}[/bold]"
    if not report.context["missing"]:
        yield f"r = rollout_logprob, t = {report.context['right']}, d = t - r in nats, w = exp(d)"
    yield ""


def _table(rules: list[Rule], *, whole: bool) -> Iterator[str]:
    """One line a rule, and what failed with its rows and what to do; those that lack the same thing come last."""
    lacking: dict[str, list[str]] = {}
    for rule in rules:
        if rule.passed is None and not whole:
            lacking.setdefault(rule.detail, []).append(rule.name)
    for rule in rules:
        if len(lacking.get(rule.detail, [])) < _TOGETHER:
            yield from _rule(rule)
        if whole:
            for line in json.dumps(rule.to_json()["evidence"], indent=2, ensure_ascii=False).splitlines():
                yield f"      [dim]{escape(line)}[/dim]"
    for detail, names in lacking.items():
        if len(names) >= _TOGETHER:
            yield from _columns(f"{len(names)} rules", "not decidable", detail)
            for line in textwrap.wrap(", ".join(names), _WIDTH - 6, break_on_hyphens=False):
                yield f"      [dim]{escape(line)}[/dim]"


def _rule(rule: Rule) -> Iterator[str]:
    yield from _columns(rule.name, rule.state, rule.detail)
    if rule.passed is False:
        for row in _rows(rule.evidence)[:3]:
            for line in textwrap.wrap(_row(row), _WIDTH - 6, subsequent_indent="  "):
                yield f"      [dim]{escape(line)}[/dim]"
    if rule.remedy:
        yield from _wrapped("      [bold]to do:[/bold] ", rule.remedy, 8)


def _columns(name: str, state: str, detail: str) -> Iterator[str]:
    indent = _NAME + _STATE
    first, *rest = textwrap.wrap(detail, _WIDTH - indent) or [""]
    yield f"{name:<{_NAME}}[{_COLOURS[state]}]{state:<{_STATE}}[/]{escape(first)}".rstrip()
    for line in rest:
        yield " " * indent + escape(line)


def _tail(report: Report, problems: list[str]) -> Iterator[str]:
    """Notes of the reader, the verdict and what comes next."""
    yield ""
    if undone := report.context["undone"]:
        said = f"{', '.join(undone)} undone in memory, to judge what else there is; nothing on disk changed"
        yield from _wrapped("[yellow]note:[/yellow] ", said, 6)
    for problem in problems[:5]:
        yield from _wrapped("[yellow]note:[/yellow] ", problem, 6)
    if len(problems) > 5:
        yield f"[yellow]note:[/yellow] {len(problems) - 5:,} more"
    word = "[bold green]comparable:[/bold green] " if report.comparable else "[bold red]not comparable:[/bold red] "
    yield from _wrapped(word, report.reason, 2)
    yield from _wrapped("[bold]next:[/bold] ", report.advice, 2)


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
    """A word in markup and a text, wrapped at 100 columns."""
    plain = len(Text.from_markup(head))
    # Paths and commands stay whole, to be copied.
    whole: dict[str, Any] = {"break_on_hyphens": False, "break_long_words": False}
    lines = textwrap.wrap(text, _WIDTH, initial_indent="x" * plain, subsequent_indent=" " * indent, **whole)
    first, *rest = lines or ["x" * plain]
    return [head + escape(first[plain:]), *map(escape, rest)]
