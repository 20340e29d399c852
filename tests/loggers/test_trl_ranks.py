"""Two processes, one run: every rank writes its own rows under numbers of their own, and every rank is heard."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from timscope.data import Run, open_run

pytest.importorskip("trl")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).parent / "rank_job.py"), str(folder)]
    jobs = [
        subprocess.Popen(
            command, env={**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stderr=subprocess.PIPE
        )
        for rank in (0, 1)
    ]
    try:
        for job in jobs:
            _, errors = job.communicate(timeout=200)
            assert job.returncode == 0, errors.decode()[-2000:]
    finally:
        for job in jobs:
            job.kill()
    return open_run(folder / "run")


@pytest.mark.slow
def test_rows_of_both_ranks_are_there(run: Run) -> None:
    assert run.complete_steps == [1, 2, 3] and run.manifest.world_size == 2
    for step in (1, 2, 3):
        rows = run.sequences([step])
        assert rows["rank"].to_list() == [0] * 8 + [1] * 8
        assert rows["sequence"].to_list() == list(range(16)) and rows["uid"].n_unique() == 16
        # Groups of four with one prompt each, and advantages over the group although the rows come in two shares.
        for _, group in rows.group_by("group_id"):
            assert len(group) == 4 and group["prompt"].n_unique() == 1
            assert abs(group["advantage"].sum()) < 1e-4
    assert run.tokens()["loss_logprob"].null_count() == 0


@pytest.mark.slow
def test_step_facts_come_from_rank_0_alone(run: Run) -> None:
    steps = run.steps()
    assert steps["step"].to_list() == [1, 2, 3] and steps["grad_norm"].null_count() == 0
    assert steps["weight_digest"].n_unique() == 3 and [w.version for w in run.manifest.weights] == [0]
    assert run.gradients().filter(run.gradients()["parameter_group"] == "total").height == 3


@pytest.mark.slow
def test_what_rank_1_could_not_do_is_said(run: Run) -> None:
    assert [p for p in run.problems if "made to fail" in p] == ["rank 1: column 'entropy' is off: made to fail"]
    missing = run.sql("SELECT rank, count(entropy) AS n FROM tokens JOIN sequences USING (step, sequence) GROUP BY 1")
    counts = dict(missing.iter_rows())
    assert counts[0] > 0 and counts[1] == 0
