"""`timscope report`: one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from timscope.app.output import Json, RunPath, SkipDamaged, console, print_json
from timscope.data import open_run


def report(
    run_path: RunPath,
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write.")] = Path("report.html"),
    skip_damaged: SkipDamaged = False,
    as_json: Json = False,
) -> None:
    """Write the verdict, the figures and the plots into one HTML file that needs nothing else."""
    from timscope.app.page import write_report

    with open_run(run_path, skip_damaged=skip_damaged) as run:
        size = write_report(run, out)
    if as_json:
        print_json({"report": str(out), "bytes": size})
    else:
        console.print(f"wrote {out} ({size / 1e6:.1f} MB): open it in a browser")
