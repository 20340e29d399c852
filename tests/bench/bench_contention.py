"""How much of the training thread's time the writer's thread takes away by holding the interpreter.

    python tests/bench/bench_contention.py [--sequences 128] [--length 256] [--pairs 30]

The main thread counts in plain Python, the worst case: it never lets the interpreter go by itself. The same count is
timed with and without one step handed to the recorder before it; the difference is what a step of that size costs a
training thread that never waits. A job that waits for a GPU pays less. Everything else runs on other cores.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from timscope.loggers import Recorder

_COUNT = 4_000_000  # some hundred milliseconds: longer than the writer needs for a step


def record(recorder: Recorder, number: int, sequences: int, length: int, rng: np.random.Generator) -> float:
    """Hand over one step as a GRPO job has it; seconds that it took."""
    shape = (sequences, length)
    tokens = rng.integers(0, 49152, (sequences, length + 64))
    old = -rng.exponential(1.0, shape).astype(np.float32)
    rollout = old + rng.normal(0, 0.01, shape).astype(np.float32)
    advantage = rng.normal(size=sequences).astype(np.float32)
    start = time.perf_counter()
    with recorder.step(number) as step:
        step.rollout(
            prompt_ids=tokens[:, :64], completion_ids=tokens[:, 64:], rollout_logprob=rollout, weight_version=number
        )
        step.trainer(old_logprob=old, loss_logprob=old, mask=np.ones(shape, bool))
        step.scores(advantage=advantage, rewards={"exact": advantage})
        step.metrics(loss=0.1, grad_norm=1.0)
    return time.perf_counter() - start


def count() -> float:
    """Seconds for the fixed count."""
    start, i = time.perf_counter(), 0
    while i < _COUNT:
        i += 1
    return time.perf_counter() - start


def main() -> None:
    """Pairs of counts, alone and with a step on its way to disk; medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, default=128)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--pairs", type=int, default=30)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    lost, handing = [], []
    with tempfile.TemporaryDirectory() as work, Recorder(Path(work) / "run") as recorder:
        for step in range(1, options.pairs + 3):
            alone = count()
            handing.append(record(recorder, step, options.sequences, options.length, rng))
            lost.append(count() - alone)
            recorder.flush()
    lost, handing = lost[2:], handing[2:]
    quarters = statistics.quantiles(lost, n=4)
    print(
        f"{options.sequences} x {options.length} tokens a step: the training thread loses {1e3 * quarters[1]:.2f} ms a "
        f"step (quartiles {1e3 * quarters[0]:.2f} to {1e3 * quarters[2]:.2f}, {len(lost)} pairs) to the writer's "
        f"thread, and {1e3 * statistics.median(handing):.2f} ms to hand a step over"
    )


if __name__ == "__main__":
    main()
