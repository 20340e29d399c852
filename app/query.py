"""`timscope query`: any SQL over the run's tables."""

from __future__ import annotations

from typing import Annotated

import typer

from timscope.app.output import Json, RunPath, SkipDamaged, console, frame_table, print_json
from timscope.data import open_run


def query(
    run_path: RunPath,
    sql: Annotated[str, typer.Argument(help="DuckDB SQL over tokens, sequences, steps, gradients, witnesses.")],
    limit: Annotated[int, typer.Option(help="Rows to print as text; --json and --csv print all.")] = 50,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    skip_damaged: SkipDamaged = False,
    as_json: Json = False,
) -> None:
    """Run one DuckDB query over the run. Views: tokens, sequences, steps, gradients, witnesses, replay_NAME."""
    with open_run(run_path, skip_damaged=skip_damaged) as run:
        frame = run.sql(sql)
    if as_json:
        columns = [{"name": name, "type": str(kind)} for name, kind in frame.schema.items()]
        print_json({"columns": columns, "rows": frame.to_dicts()})
    elif csv:
        typer.echo(frame.write_csv(), nl=False)
    else:
        console.print(frame_table(frame, limit))
        if frame.height > limit:
            console.print(f"… {frame.height - limit:,} more rows; --limit {frame.height}, --csv or --json prints them")
