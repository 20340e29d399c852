"""`timscope replay`: add a witness to a run."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from timscope.app.extras import needs_torch
from timscope.app.output import Json, RunPath, print_json, say
from timscope.data import open_run
from timscope.data.errors import BadInput


def replay(
    run_path: RunPath,
    engine: Annotated[str, typer.Option(help="Which witness to add: exact, or hf (plain transformers).")] = "exact",
    steps: Annotated[
        str | None, typer.Option(help="Steps such as 0,3,5-9; default: all whose weights are at hand.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Weights to use instead of the source that the manifest names.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16; default: the trainer's.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the replay; default: engine and dtype.")] = None,
    allow_other_weights: Annotated[
        bool, typer.Option("--allow-other-weights", help="Replay although the digest differs from the recorded one.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Recompute log-probs with the exact engine and store them beside the run. An interrupted replay resumes."""
    wanted = None if steps is None else parse_steps(steps)
    with open_run(run_path) as run:  # bad input is named before torch is loaded
        said = run.manifest.imported
        if said and (reason := said.cannot.get("replay")):
            raise BadInput(f"{run_path} cannot be replayed: {reason}")
    needs_torch("replay")
    from timscope.replay.replay_run import replay_run

    done = replay_run(
        run_path,
        engine=engine,
        steps=wanted,
        model=model,
        device=device,
        dtype=dtype,
        name=name,
        allow_other_weights=allow_other_weights,
        progress=not as_json,
    )
    with open_run(run_path) as run:
        stored = run.replay(done.name)
    said = {
        "replay": stored.name,
        "path": str(done),
        "steps": stored.complete_steps,
        "exact": stored.certified,
        "column": stored.column,
    }
    if as_json:
        print_json(said)
    else:
        proof = (
            "certified bitwise exact on this machine"
            if stored.certified
            else "NOT certified: treat it as one more engine"
        )
        say(f"replay [bold]{stored.name}[/bold]: {len(stored.complete_steps)} step(s), {proof}")
        say("next:", f"  timscope diagnose {escape(run_path)}")
    # Plain transformers claims no exactness, so it cannot fail to prove it.
    raise typer.Exit(0 if stored.certified or engine == "hf" else 1)


def parse_steps(text: str) -> list[int]:
    """ "0,3,5-9" as a list of step numbers; BadInput where it is not that."""
    steps: set[int] = set()
    for piece in text.split(","):
        first, dash, last = piece.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise BadInput(f"--steps {text!r} is not a list of steps: write 0,3,5-9")
        steps.update(range(int(first), int(last or first) + 1))
    return sorted(steps)
