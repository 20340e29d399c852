"""Rule 1, weight versions and ranks: counters that go back, and those that were only reset at a resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checking import sound, warned
from recorded import Columns, sample

from timscope.analysis.check import Report, run_checks
from timscope.data import open_run

STEPS = 8


def versioned(trained: list[int], sampled: list[int] | None = None, resume: list[int] | None = None) -> Columns:
    """The sample in 8 steps, with the version trained in each step and the one its sequences were sampled by."""
    c = sample()
    c.steps = STEPS
    c.step_rows = {i: {"weight_version": [v]} for i, v in enumerate(trained)}
    for i, count in enumerate(resume or []):
        c.step_rows[i]["resume"] = [count]
    per_step = np.repeat(trained if sampled is None else sampled, 512 // STEPS)
    return c.with_rows(weight_version=per_step.tolist())


def found(report: Report) -> dict[str, Any]:
    return dict(report.rule("integrity").evidence["violations"])


def test_versions_that_only_grow(tmp_path: Path):
    sound(versioned([0, 1, 2, 3, 3, 4, 6, 7]).check(tmp_path))


def test_stale_rollouts_are_no_fault_of_the_log(tmp_path: Path):
    sound(versioned(list(range(4, 12)), [2, 3, 5, 6, 6, 8, 9, 10]).check(tmp_path))


def test_a_version_that_goes_back(tmp_path: Path):
    report = versioned([0, 1, 2, 3, 2, 3, 4, 5]).check(tmp_path)
    warned(report, "integrity")
    (row,) = found(report)["version_back"]["rows"]
    assert (row["step"], row["trained"], row["last"]) == (4, 2, 3)


def test_a_counter_that_starts_again_at_a_resume(tmp_path: Path):
    sound(versioned([4, 5, 6, 7, 0, 1, 2, 3], resume=[0, 0, 0, 0, 1, 1, 1, 1]).check(tmp_path))


def test_going_back_inside_one_life_is_told_in_a_resumed_job_too(tmp_path: Path):
    report = versioned([4, 5, 6, 7, 0, 2, 1, 3], resume=[0, 0, 0, 0, 1, 1, 1, 1]).check(tmp_path)
    warned(report, "integrity")
    assert found(report)["version_back"]["rows"][0]["step"] == 6


def test_a_resume_that_no_step_names_excuses_a_counter_reset(tmp_path: Path):
    path = versioned([4, 5, 6, 7, 0, 1, 2, 3]).write(tmp_path)
    state = path / "recorder" / "rank=0.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "resumes": 1}))
    with open_run(path) as run:
        sound(run_checks(run))


def test_rollouts_from_the_future(tmp_path: Path):
    report = versioned(list(range(8)), [0, 1, 2, 5, 4, 5, 6, 7]).check(tmp_path)
    warned(report, "integrity")
    assert found(report)["version_ahead"]["count"] == 512 // STEPS
    assert found(report)["version_ahead"]["rows"][0] == {"step": 3, "sequence": 192, "sampled": 5, "trained": 3}


def test_counting_from_another_number_is_not_the_future(tmp_path: Path):
    sound(versioned(list(range(8)), list(range(1, 9))).check(tmp_path))


@pytest.mark.parametrize(("second", "wrong"), [(6, False), (4, True)])
def test_versions_inside_one_sequence(tmp_path: Path, second: int, wrong: bool):
    # slime#2092: segments of one response by versions 2, 4 and 6 are a fact, not a fault.
    c = sample()
    start, end = int(c.starts[2]), int(c.starts[3])
    version = np.full(len(c.number), 2)
    version[start + 4 : start + 8], version[start + 8 : end] = 5, second
    report = c.with_tokens(weight_version=version).check(tmp_path)
    if not wrong:
        return sound(report)
    warned(report, "integrity")
    assert found(report)["version_back_in_sequence"]["rows"][0]["sequence"] == 2


def ranks(lacking: int | None) -> Columns:
    """Four ranks share every step, save one that lacks rank 3."""
    c = sample()
    c.steps = STEPS
    rank = np.arange(512) % 4
    if lacking is not None:
        part = slice(lacking * 64, (lacking + 1) * 64)
        rank[part] = np.arange(64) % 3
    return c.with_rows(rank=rank.tolist())


def test_a_rank_that_some_step_lacks(tmp_path: Path):
    report = ranks(5).check(tmp_path)
    warned(report, "integrity")
    assert found(report)["rank_missing"]["rows"] == [{"step": 5, "missing": [3]}]


def test_all_ranks_everywhere(tmp_path: Path):
    sound(ranks(None).check(tmp_path))
