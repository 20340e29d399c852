"""`timscope localize`: where two computations of the same tokens part, and which swap accounts for the difference."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from timscope.app.extras import needs_torch
from timscope.app.localize_files import write_files
from timscope.app.localize_text import show
from timscope.app.output import Json, RunPath, console, print_json, progress_console
from timscope.data import BadInput, open_run

_WITNESS = "exact, hf, exact-bfloat16, hf-float32-eager, ... or trainer (as the run logged it)."


def localize(
    run_path: RunPath,
    step: Annotated[int, typer.Option(help="The step to look at.")],
    left: Annotated[str, typer.Option(help=f"First witness, and the start of the swaps: {_WITNESS}")] = "exact",
    right: Annotated[str, typer.Option(help="Second witness.")] = "trainer",
    target: Annotated[
        str | None,
        typer.Option(help="What swaps should come closer to: a letter (A, B, C, N), its column, or right. Default: A."),
    ] = None,
    swaps: Annotated[str, typer.Option(help="Swaps to rank, such as logits-bf16,kv-fp8; all, or none.")] = "all",
    sequences: Annotated[int, typer.Option(help="Sequences of the step to take.")] = 16,
    model: Annotated[str | None, typer.Option(help="Weights instead of those that the manifest names.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    resamples: Annotated[int, typer.Option(help="Bootstrap draws of the intervals.", min=1)] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    allow_other_weights: Annotated[
        bool, typer.Option("--allow-other-weights", help="Go on although the digest differs from the recorded one.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for figures (PNG, SVG) and Parquet.")] = None,
    as_json: Json = False,
) -> None:
    """Name the first module where two witnesses part; rank one-op swaps. Exit 0 bit-equal, 1 they part, 2 bad input."""
    open_run(run_path).close()  # bad input is named before torch is loaded
    needs_torch("localize")
    if out is not None and out.exists() and not out.is_dir():
        raise BadInput(f"{out} is a file: give a folder with --out")
    from timscope.replay.localize import localize as run_localize

    names = None if swaps == "all" else [] if swaps == "none" else [name.strip() for name in swaps.split(",")]
    with _status(not as_json) as tell:
        found = run_localize(
            run_path,
            step,
            left=left,
            right=right,
            target=_column(target),
            swaps=names,
            sequences=sequences,
            model=model,
            device=device,
            resamples=resamples,
            seed=seed,
            allow_other_weights=allow_other_weights,
            progress=tell,
        )
    found.said["files"] = [] if out is None else write_files(out, found.said, found.tokens)
    if as_json:
        print_json(found.said)
    else:
        for line in show(found.said, console.width):
            console.print(line, soft_wrap=isinstance(line, str) and line.startswith("  "))
    control = found.said["swaps"] is None or found.said["swaps"]["control_passed"]
    raise typer.Exit(1 if found.said["parted"] or not control else 0)


def _column(target: str | None) -> str | None:
    from timscope.analysis.columns import LETTERS

    return target if target is None else LETTERS.get(target, target)


_WORDS: dict[str, str] = {"weights": "loading the weights", "sites": "comparing every module", "swap": "swaps: {n} run"}


@contextmanager
def _status(show: bool) -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is being done; silent unless `show`."""
    if not show or not progress_console.is_terminal:
        yield lambda _what: None
        return
    swaps = itertools.count()
    with progress_console.status("reading the run") as status:
        yield lambda what: status.update(_WORDS[what].format(n=next(swaps) if what == "swap" else 0))
