"""`timscope import`: another framework's dump into a run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from timscope.app.output import Json, console, number, print_json, say, table
from timscope.data.errors import BadInput


def _list(wanted: bool) -> None:
    if wanted:
        from timscope.data.importers.registry import formats

        console.print(table(["format", "tier", "what it is"], [(f.name, f.tier, f.title) for f in formats().values()]))
        raise typer.Exit


def import_run(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="File or folder that the framework wrote.")],
    run_path: Annotated[
        str, typer.Argument(metavar="RUN", help="Directory to write; a new one, or an earlier import.")
    ],
    format: Annotated[str, typer.Option("--format", help="auto, or a name from --list.")] = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier import in RUN.")] = False,
    _formats: Annotated[
        bool, typer.Option("--list", callback=_list, is_eager=True, help="Print the formats and exit.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Import a dump of another framework. Exit code 1 where the dump is damaged: cut short, ranks missing, zeros."""
    from timscope.data.importers.convert import import_dump

    try:
        done = import_dump(source, run_path, format=format, overwrite=overwrite)
    except OSError as error:  # no right, no room, a name too long
        raise BadInput(
            f"{run_path} cannot be written ({error.strerror or error}): give a directory with room and the right to "
            "write; the same command goes on where it stopped"
        ) from error
    imported = done.imported
    if as_json:
        counts: dict[str, Any] = {"steps": done.steps, "sequences": done.sequences, "tokens": done.tokens}
        print_json(
            {"run": done.run, **imported.model_dump(), **counts, "resumed": done.resumed, "damaged": done.damaged}
        )
    else:
        say(f"{imported.format} ({imported.tier}): {_count(done.steps, 'step')}, {_count(done.sequences, 'sequence')}, "
            f"{_count(done.tokens, 'response token')}")  # fmt: skip
        if done.resumed:
            say(f"{_count(done.resumed, 'step')} of an earlier import kept")
        if imported.findings:
            say("found, and kept as it is:")
        for finding in imported.findings:
            say(f"  {finding.kind}, {finding.count:,}x: {finding.detail}{_evidence(finding.evidence)}")
        if imported.cannot:
            say("what this run cannot serve:")
        for command, reason in imported.cannot.items():
            say(f"  timscope {command}: {reason}")
        say(f"wrote {done.run}; next: timscope check {done.run}")
    if done.damaged:
        raise typer.Exit(1)


def _count(value: int, what: str) -> str:
    return f"{value:,} {what}{'' if value == 1 else 's'}"


def _evidence(evidence: dict[str, Any]) -> str:
    """The first place, as one short text; all of it is in the manifest."""
    shown = ", ".join(f"{k} {number(v) if isinstance(v, int | float) else v}" for k, v in evidence.items())
    return f" ({shown[:160]})" if shown else ""
