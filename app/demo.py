"""`timscope demo`: the main job, end to end, on the real run that ships with the package."""

from __future__ import annotations

import shutil
import time
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from timscope.app.extras import needs_torch
from timscope.app.output import Json, print_json, say
from timscope.data import Run, open_run
from timscope.data.errors import BadInput

SAMPLE = "smollm2-grpo"


def demo(
    out: Annotated[Path, typer.Option(help="Directory for the run's copy and the report.")] = Path("timscope-demo"),
    as_json: Json = False,
) -> None:
    """Open a real GRPO run, replay its first step with the exact engine on the CPU, name the side, write a report."""
    needs_torch("demo")
    from timscope.analysis.verdict import diagnose
    from timscope.app.page import write_report
    from timscope.replay.replay_run import replay_run

    started = time.monotonic()
    run_dir, page = copy_sample(out), out / "report.html"
    with open_run(run_dir) as run:
        first = run.complete_steps[0]
        if not as_json:
            say(*introduce(run, run_dir))
    replay_run(run_dir, steps=[first], device="cpu", progress=not as_json)
    with open_run(run_dir) as run:
        found = diagnose(run)
        write_report(run, page, found)
    took = time.monotonic() - started
    if as_json:
        print_json({**found.to_json(), "run": str(run_dir), "report": str(page), "seconds": took})
        return
    say(
        "",
        *map(escape, found.lines),
        "",
        f"The whole story with plots, {took:.0f} s after the start:",
        f"  {escape(str(page))}",
    )
    say(*map(escape, next_steps(run_dir)))


def copy_sample(out: Path) -> Path:
    """A writable copy of the bundled run in `out`; an earlier demo's copy is used again, its replay resumes."""
    target = out / SAMPLE
    if target.exists():
        return target
    if out.exists() and (not out.is_dir() or any(p.name != "report.html" for p in out.iterdir())):
        raise BadInput(f"{out} is not empty: give another --out, or remove it")
    with as_file(files("timscope.data") / "samples" / SAMPLE) as source:
        if not (source / "manifest.json").exists():
            raise BadInput(
                "this installation lacks the bundled run: reinstall timscope from a complete wheel or checkout"
            )
        out.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(target.name + ".tmp")
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(source, unfinished)
        unfinished.rename(target)  # an interrupted copy must not pass for a run
    return target


def introduce(run: Run, run_dir: Path) -> list[str]:
    """What this run is, from its manifest and tables."""
    m = run.manifest
    tokens, sequences = run.sql("SELECT count(*), count(DISTINCT (step, sequence)) FROM tokens").row(0)
    framework = f"{m.framework.name} {m.framework.version or ''}".strip() if m.framework else "an RL job"
    return [
        f"[bold]{escape(str(run_dir))}[/bold]:",
        f"{m.algorithm.name or 'RL'} of {m.model.name} with {framework}, recorded live through the hook",
        f"  {len(run.complete_steps)} optimizer steps, {sequences:,} completions, {tokens:,} response tokens",
        f"  rollout engine  {m.rollout.name} {m.rollout.version}, {m.rollout.dtype}",
        f"  trainer         {m.trainer.name} {m.trainer.version}, {m.trainer.dtype}",
        "Both claim the same weights at every step, yet they disagree on the log-probs. Which side is off?",
        f"A third witness, the exact engine, now recomputes step {run.complete_steps[0]}, "
        "whose weights are the published model's.",
    ]


def next_steps(run_dir: Path) -> list[str]:
    """What to try after the demo."""
    sql = (
        "SELECT step, avg(abs(rollout_logprob - old_logprob)) AS mean_abs_d FROM witnesses GROUP BY step ORDER BY step"
    )
    return [
        "",
        "Try next:",
        f"  timscope diagnose {run_dir} --json",
        f'  timscope query {run_dir} "{sql}"',
        "  timscope certify smollm2          # the engine's bitwise proof on this machine (minutes)",
        "  your own run: timscope.attach(trainer, 'runs/mine') before trainer.train(), see README",
    ]
