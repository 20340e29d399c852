"""kill -9 at any moment: each version listed is whole, each step that was complete still is, the job goes on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from timscope.data import open_run
from timscope.data.digest import digest_tensors, fingerprint

torch = pytest.importorskip("torch")

import killed_job  # noqa: E402

from timscope.loggers.weights import weight_items  # noqa: E402

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(scope="module")
def jobs() -> Iterator[Any]:
    """A process that forks jobs."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, killed_job.__file__]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, bufsize=1
    ) as process:
        yield process
        assert process.stdin
        process.stdin.close()


def start(jobs: Any, path: Path, die_in_write: int = 0, steps: int = 10_000) -> int:
    jobs.stdin.write(f"{path} {die_in_write} {steps}\n")
    return int(jobs.stdout.readline())


def gone(jobs: Any) -> int:
    return int(jobs.stdout.readline())


def steps_on_disk(path: Path) -> int:
    return len(list(path.glob("steps/step=*/COMPLETE.rank=0")))


def check(path: Path, steps_before: list[int], versions_before: list[int]) -> tuple[list[int], list[int]]:
    """Everything listed is right, and nothing listed before is gone."""
    model = killed_job.Weights()
    with open_run(path) as run:
        assert set(steps_before) <= set(run.complete_steps) and set(versions_before) <= set(run.weight_versions)
        assert run.complete_steps == list(range(1, len(run.complete_steps) + 1)), "a step in the middle was lost"
        for version in run.weight_versions:
            killed_job.set_version(model, version)
            weights = run.weights(version)
            found = [(n, t.dtype, t.shape, t.data) for n, t in sorted(weights.items())]
            assert digest_tensors(found) == digest_tensors(weight_items(model))
        frame = run.steps()
        for step, version, mark in frame.select("step", "weight_version", "weight_digest").iter_rows():
            killed_job.set_version(model, version)
            assert version == step - 1 and mark == fingerprint(weight_items(model))
        if last := max(run.complete_steps, default=0):
            tokens = run.tokens([last])
            assert np.array_equal(tokens["rollout_logprob"].to_numpy(), killed_job.logprobs(last))
            assert set(range(last)) <= set(run.weight_versions), "a complete step comes after its weights"
        return run.complete_steps, run.weight_versions


def test_kill_9_at_random_moments(tmp_path: Path, jobs: Any) -> None:
    path, rng = tmp_path / "run", random.Random(5)
    steps: list[int] = []
    versions: list[int] = []
    for _ in range(4):
        pid = start(jobs, path)
        until, goal = time.monotonic() + 20, steps_on_disk(path) + rng.randint(1, 6)
        while steps_on_disk(path) < goal:
            assert time.monotonic() < until, "the job does not get on"
            time.sleep(0.001)
        time.sleep(rng.random() * 0.03)
        os.kill(pid, signal.SIGKILL)
        assert gone(jobs) == signal.SIGKILL
        steps, versions = check(path, steps, versions)
    start(jobs, path, steps=2)
    assert gone(jobs) == 0
    end, _ = check(path, steps, versions)
    assert len(end) == len(steps) + 2
    with open_run(path) as run:
        assert run.manifest.recorder.resumes == 4 and run.manifest.recorder.closed
        kinds = {run.weights(v, verify=False).entry.kind for v in run.weight_versions}
        assert kinds == {"full", "delta"}


def test_kill_9_in_the_middle_of_a_write(tmp_path: Path, jobs: Any) -> None:
    """Each file in turn: the whole snapshot, its version.json, a delta's, and again after a resume."""
    path = tmp_path / "run"
    steps: list[int] = []
    versions: list[int] = []
    for count in (1, 2, 3, 4, 7, 9):
        start(jobs, path, die_in_write=count)
        assert gone(jobs) == signal.SIGKILL
        assert list(path.glob("weights/*/*.tmp")), "the kill was to hit an open file"
        steps, versions = check(path, steps, versions)
    start(jobs, path, steps=5)
    assert gone(jobs) == 0
    assert not list(path.glob("weights/*/*.tmp")), "what a crash left is swept away"
    end, _ = check(path, steps, versions)
    assert len(end) == len(steps) + 5
