"""How long `timscope check` takes on a run of 10 M tokens, and how much memory.

Run by hand: python tests/bench/bench_check.py [TOKENS]. The run is made of whole answers of the recorded one, 16 to a
sequence, drawn with replacement and changed in nothing, so every pair of log-probs is a real one. They are drawn with
slightly uneven odds (a few per cent): with even ones E[w] of ten million drawn tokens is that of the 512 answers, which
is 0.9995 and by then many standard errors from 1, though the answers came from a valid sampler. The check runs in a
process of its own on two cores, so that its time and peak memory are its own. Exit code 1 where the clean run is
refused or a rule fails, or 10 M tokens take 10 s or more.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from bench_writer import JOINED, PROMPT, SAMPLE, STEP_TOKENS
from numpy.typing import NDArray

from timscope.analysis.check import run_checks
from timscope.data import RunWriter, open_run

COLUMNS = ("token_id", "mask", "rollout_logprob", "old_logprob", "loss_logprob", "entropy")
CORES = 2


def odds(source: dict[str, NDArray[Any]], starts: NDArray[Any]) -> NDArray[Any]:
    """Chance of each answer, such that the drawn tokens have E[w] = 1: p = exp(a x) with x its sum of w - 1."""
    excess = np.expm1(source["old_logprob"].astype(np.float64) - source["rollout_logprob"])
    x, a = np.add.reduceat(excess, starts), 0.0
    for _ in range(20):  # Newton; the first step is nearly all of it
        p = np.exp(a * x)
        a -= float((p * x).sum() / (p * x * x).sum())
    p = np.exp(a * x)
    return np.asarray(p / p.sum())


def write(path: Path, tokens: int) -> int:
    """Write the run; returns its tokens."""
    rng, written, step = np.random.default_rng(0), 0, 0
    with open_run(SAMPLE) as run:
        frame, manifest = run.tokens(), run.manifest
    source = {name: frame[name].to_numpy() for name in COLUMNS}
    row = frame["step"].cast(int).to_numpy() * 1_000_000 + frame["sequence"].to_numpy()
    starts = np.flatnonzero(np.r_[True, np.diff(row) != 0])
    ends = np.r_[starts[1:], len(row)]
    answers, p = ends - starts, odds(source, starts)
    with RunWriter(path, manifest.model_copy(update={"world_size": 1}), strict=True) as writer:
        while written < tokens:
            size = min(STEP_TOKENS, tokens - written)
            step += 1
            chosen = rng.choice(len(starts), (max(1, int(size / answers.mean() / JOINED)), JOINED), p=p)
            index = np.concatenate([np.arange(starts[i], ends[i]) for i in chosen.reshape(-1)])
            lengths, count = answers[chosen].sum(1), len(chosen)
            place = {
                "sequence": np.repeat(np.arange(count), lengths),
                "position": np.concatenate([PROMPT + np.arange(n) for n in lengths]).astype(np.int32),
            }
            writer.put("tokens", step, {**place, **{name: values[index] for name, values in source.items()}})
            rows = {"prompt_ids": [list(range(PROMPT))] * count, "num_tokens": lengths}
            sequences = {**rows, "weight_version": [step - 1] * count, "advantage": rng.standard_normal(count)}
            writer.put("sequences", step, {"sequence": np.arange(count), **sequences})
            writer.put("steps", step, {"weight_version": [step - 1]})
            writer.complete(step)
            written += len(index)
    return written


def check(path: Path) -> dict[str, Any]:
    """Check the run; seconds, CPU seconds, peak memory of this process before and after (KiB), and the report."""
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    cpu = time.process_time()
    with open_run(path) as run:
        report = run_checks(run)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    rules = [(rule.name, rule.state, rule.detail) for rule in report.rules if rule.passed is not True]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {"comparable": report.comparable, "reason": report.reason, "rules": rules}
    return {"seconds": seconds, "cpu": cpu, "before": before, "peak": peak, **found}


def main() -> int:
    """Write, check, print."""
    if sys.argv[1:2] == ["--check"]:
        print(json.dumps(check(Path(sys.argv[2]))))
        return 0
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    with tempfile.TemporaryDirectory() as work:
        tokens = write(Path(work) / "run", int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000)
        command = [sys.executable, __file__, "--check", f"{work}/run"]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    seconds, peak, before = found["seconds"], found["peak"] / 2**20, found["before"] / 2**20
    print(
        f"{tokens:,} tokens checked in {seconds:.2f} s on {len(os.sched_getaffinity(0))} cores "
        f"({found['cpu']:.2f} CPU s); "
        f"peak memory {peak:.2f} GiB, {before:.2f} of it Python and the libraries"
    )
    for name, state, detail in found["rules"]:
        print(f"  {name}: {state}: {detail}")
    print(found["reason"])
    failed = any(state in ("FAILED", "warn") for _, state, _ in found["rules"])
    return int(not found["comparable"] or failed or seconds >= 10 * max(1, tokens / 1e7))


if __name__ == "__main__":
    sys.exit(main())
