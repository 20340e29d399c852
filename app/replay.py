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
    engine: Annotated[str, typer.Option(help="Witness to add: exact; hf (the trainer, imitated); vllm.")] = "exact",
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
    implementation: Annotated[
        str, typer.Option(help="Of the exact engine: fast (CUDA), tiles, or auto: fast where it can.")
    ] = "auto",
    attention: Annotated[
        str | None, typer.Option(help="hf: attention such as sdpa or eager; default of these five: as the run says.")
    ] = None,
    padding: Annotated[str | None, typer.Option(help="hf: recorded, two-sided, right, left or none.")] = None,
    micro_batch: Annotated[int | None, typer.Option(help="hf: sequences a forward.")] = None,
    logits: Annotated[str | None, typer.Option(help="hf: bfloat16, float32 or head-float32.")] = None,
    head: Annotated[str | None, typer.Option(help="hf: plain, or trl (TRL's fused head).")] = None,
    batch_invariant: Annotated[
        bool, typer.Option("--batch-invariant", help="vllm: with VLLM_BATCH_INVARIANT=1.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Recompute log-probs with another engine and store them beside the run. An interrupted replay resumes."""
    wanted = None if steps is None else parse_steps(steps)
    with open_run(run_path) as run:  # bad input is named before torch is loaded
        imported = run.manifest.imported
        if imported and (reason := imported.cannot.get("replay")):
            raise BadInput(f"{run_path} cannot be replayed: {reason}")
    needs_torch("replay")
    from timscope.replay.replay_run import replay_run
    from timscope.replay.reproduction import reproduction
    from timscope.replay.trainer_layout import Emulation

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
        implementation=implementation,
        emulation=Emulation(attention, padding, micro_batch, logits, head),
        batch_invariant=batch_invariant,
    )
    with open_run(run_path) as run:
        stored = run.replay(done.name)
        trainer = reproduction(run, done.name)
    said = {
        "replay": stored.name,
        "path": str(done),
        "steps": stored.complete_steps,
        "exact": stored.certified,
        "column": stored.column,
        "implementation": stored.manifest.environment.get("engine"),
        "trainer": trainer,
    }
    if as_json:
        print_json(said)
    else:
        proof = (
            "certified bitwise exact on this machine"
            if stored.certified
            else "NOT certified: treat it as one more engine"
            if engine == "exact"
            else "a witness without a claim to exactness"
        )
        say(f"replay [bold]{stored.name}[/bold]: {len(stored.complete_steps)} step(s), {proof}")
        if trainer:
            say(
                f"equal to the trainer's log-probs bit for bit on {trainer['equal_share']:.1%} of {trainer['tokens']} "
                f"tokens, mean |difference| {trainer['mean_abs_diff'] or 0:.2g} nats"
            )
        say("next:", f"  timscope diagnose {escape(run_path)}")
    # The other engines claim no exactness, so they cannot fail to prove it.
    raise typer.Exit(0 if stored.certified or engine != "exact" else 1)


def parse_steps(text: str) -> list[int]:
    """ "0,3,5-9" as a list of step numbers; BadInput where it is not that."""
    steps: set[int] = set()
    for piece in text.split(","):
        first, dash, last = piece.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise BadInput(f"--steps {text!r} is not a list of steps: write 0,3,5-9")
        steps.update(range(int(first), int(last or first) + 1))
    return sorted(steps)
