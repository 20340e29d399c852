"""How long `timscope check` takes on a run of 10 M tokens, and how much memory.

Run by hand: python tests/bench/bench_check.py [TOKENS]. The run is drawn from the recorded one as in bench_writer.py, with
its prompts and weight versions, and written through the recorder's writer. Exit code 1 where a clean run is refused or
10 M tokens take more than 10 s.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from bench_writer import PROMPT, SAMPLE, STANDARD, STEP_TOKENS, draw

from timscope.analysis.check import run_checks
from timscope.data import RunWriter, open_run


def write(path: Path, tokens: int) -> int:
    """Write the run; returns its tokens."""
    rng, written, step = np.random.default_rng(0), 0, 0
    with open_run(SAMPLE) as run:
        frame, manifest = run.tokens(), run.manifest
    source = {name: frame[name].to_numpy() for name in ("rollout_logprob", "old_logprob", "entropy", "loss_logprob")}
    row = frame["step"].cast(int).to_numpy() * 1_000_000 + frame["sequence"].to_numpy()
    starts = np.flatnonzero(np.r_[True, np.diff(row) != 0])
    ends = np.r_[starts[1:], len(row)]
    with RunWriter(path, manifest.model_copy(update={"world_size": 1}), strict=True) as writer:
        while written < tokens:
            step += 1
            columns = draw(source, starts, ends, STEP_TOKENS, rng)
            # The drawn gap may lift a log-prob past 0; at 0.0 exactly it would rightly count as a placeholder.
            columns["rollout_logprob"] = np.minimum(columns["rollout_logprob"], np.float32(-1e-6))
            kept = {name: columns[name] for name in ("sequence", "position", *STANDARD)}
            numbers, counts = np.unique(columns["sequence"], return_counts=True)
            writer.put("tokens", step, kept)
            writer.put(
                "sequences",
                step,
                {
                    "sequence": numbers,
                    "prompt_ids": [list(range(PROMPT))] * len(numbers),
                    "num_tokens": counts,
                    "weight_version": [step - 1] * len(numbers),
                    "advantage": rng.standard_normal(len(numbers)),
                },
            )
            writer.put("steps", step, {"weight_version": [step - 1]})
            writer.complete(step)
            written += len(columns["sequence"])
    return written


def main() -> int:
    """Write, check, print."""
    tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    with tempfile.TemporaryDirectory() as work:
        tokens = write(Path(work) / "run", tokens)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.perf_counter()
        with open_run(Path(work) / "run") as run:
            report = run_checks(run)
        seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{tokens:,} tokens checked in {seconds:.2f} s; peak memory {peak / 2**20:.2f} GiB ({before / 2**20:.2f} before)")
    for rule in report.rules:
        if rule.passed is not True:
            print(f"  {rule.name}: {rule.state}: {rule.detail}")
    print(report.reason)
    return int(not report.comparable or seconds > 10 * max(1, tokens / 1e7))


if __name__ == "__main__":
    sys.exit(main())
