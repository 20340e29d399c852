"""How commands speak: rich text for people on stdout, one JSON object for machines, progress on stderr."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import polars as pl
import typer
from rich.console import Console
from rich.table import Table

console = Console(highlight=False)
progress_console = Console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
SkipDamaged = Annotated[bool, typer.Option("--skip-damaged", help="Leave out steps with a missing or truncated part.")]
RunPath = Annotated[str, typer.Argument(metavar="RUN", help="Directory that the recorder wrote.")]


def _plain(value: Any) -> Any:
    """Values that JSON can hold: non-finite numbers become null, dates and paths become text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    typer.echo(json.dumps(_plain(value), indent=2, default=str, ensure_ascii=False))


def say(*lines: str) -> None:
    """Lines for people: prose wraps at words, indented lines are commands and figures and stay whole for copying."""
    for line in lines:
        console.print(line, soft_wrap=line.startswith("  "))


def number(value: Any) -> str:
    """A figure as people read it: four significant digits, thousands separated, a dash where it is missing."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if math.isnan(value) or math.isinf(value):
            return str(value)
        if value == 0:
            return "0"
        return f"{value:.2e}" if abs(value) < 1e-3 or abs(value) >= 1e6 else f"{value:,.4g}"
    return str(value)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None) -> Table:
    """A rich table: first column left, figures right."""
    out = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for i, name in enumerate(columns):
        out.add_column(name, justify="left" if i == 0 else "right", overflow="fold")
    for row in rows:
        out.add_row(*(number(v) for v in row))
    return out


def frame_table(frame: pl.DataFrame, limit: int) -> Table:
    """A Polars frame as a rich table of at most `limit` rows."""
    return table(frame.columns, frame.head(limit).iter_rows())
