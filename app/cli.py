"""The command line. Each command is one small file beside this one; this file names them and turns errors into exits.

Exit codes: 0 fine, 1 a finding or a failed check, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import os
import sys

import typer

from timscope.app import certify, check, demo, diagnose, import_run, localize, query, replay, report
from timscope.data.errors import BadInput

app = typer.Typer(
    name="timscope",
    help="Flight recorder and crash laboratory for training-inference mismatch in LLM reinforcement learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for command in (demo.demo, check.check, replay.replay, diagnose.diagnose, report.report, query.query, certify.certify):
    app.command()(command)
app.command()(localize.localize)
app.command("import")(import_run.import_run)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        from timscope import __version__

        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Entry point of the console script: bad input becomes one line on stderr and exit code 2."""
    try:
        app()
    except BadInput as error:
        print(f"timscope: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("timscope: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


if __name__ == "__main__":
    main()
