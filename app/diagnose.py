"""`timscope diagnose`: how large the mismatch is, whether it is a mismatch at all, and which side it comes from."""

from __future__ import annotations

import typer
from rich.markup import escape

from timscope.app.output import Json, RunPath, SkipDamaged, print_json, say
from timscope.data import open_run
from timscope.data.errors import BadInput


def diagnose(run_path: RunPath, skip_damaged: SkipDamaged = False, as_json: Json = False) -> None:
    """Verdict, decomposition by side, metrics. Exit 0 when the run is clean, 1 when there is a finding."""
    from timscope.analysis.verdict import diagnose as run_diagnose

    with open_run(run_path, skip_damaged=skip_damaged) as run:
        found = run_diagnose(run)
        problems = run.problems
    if found.missing and not as_json:
        raise BadInput(found.reason)
    if as_json:
        print_json({**found.to_json(), "problems": problems})
    else:
        say(*map(escape, found.lines))
        say(*(f"[yellow]note:[/yellow] {escape(problem)}" for problem in problems))
    if found.missing:
        raise typer.Exit(2)
    raise typer.Exit(0 if found.verdict == "clean" else 1)
