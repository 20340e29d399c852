"""zero-filled-old, old-copies-rollout and truncated-dump: what a dump can do to a run, whole and in part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checking import blocked, failed, sound, warned
from inject import R, T
from recorded import Columns, resampled, sample

from timscope.analysis.check import run_checks
from timscope.data import open_run
from timscope.data.manifest import Algorithm, Engine, Imported, ImportFinding

N = "loss_logprob"


def old(c: Columns, values: np.ndarray | float, first: int = 0, loss: bool = False) -> Columns:
    """Other old log-probs from sequence number `first` on; loss_logprob only where asked for."""
    new = np.where(c.number >= first, np.float32(values) if np.isscalar(values) else values, c[T])
    return c.with_tokens(**{T: new.astype(np.float32)} | ({} if loss else {N: None}))


def with_findings(c: Columns, *findings: ImportFinding, **cannot: str) -> Columns:
    return c.declaring(imported=Imported(format="x", source="y", tier="T3", findings=list(findings), cannot=cannot))


def test_old_log_probs_of_zeros(tmp_path: Path):
    report = old(sample(), 0.0).check(tmp_path)
    blocked(report, "zero-filled-old")
    assert report.rule("units").passed is None and report.context["right"] is None


def test_zeros_in_half_of_the_steps_leave_the_other_half(tmp_path: Path):
    report = old(sample(), 0.0, first=256).check(tmp_path)
    blocked(report, "zero-filled-old")
    assert report.context["tokens"] == int((sample().number < 256).sum())
    assert report.context["mean_abs"] == pytest.approx(0.045, abs=0.005)


def test_the_log_probs_of_the_loss_speak_where_old_is_zero(tmp_path: Path):
    report = old(sample(), 0.0, loss=True).check(tmp_path)
    blocked(report, "zero-filled-old")
    assert report.context["right"] == N and report.rule("off-by-one").passed is True
    assert N in report.rule("zero-filled-old").detail


def test_some_exact_zeros_are_no_filling(tmp_path: Path):
    c = sample()
    sure = c[T] > -1e-4
    sound(c.with_tokens(**{T: np.where(sure, 0.0, c[T]).astype(np.float32)}).check(tmp_path))


@pytest.mark.parametrize("mode", ["bypass", "unknown", "recompute"])
def test_old_log_probs_that_are_the_rollouts(tmp_path: Path, mode: Any):
    # Engine in bf16 and trainer in float32 cannot agree bit for bit, whatever the mode says.
    engines = {"rollout": Engine(dtype="bfloat16"), "trainer": Engine(dtype="float32")}
    c = old(sample(), sample()[R]).declaring(algorithm=Algorithm(loss_mode=mode), **engines)
    report = c.check(tmp_path)
    blocked(report, "old-copies-rollout")
    assert report.rule("units").passed is None


def test_a_copy_cannot_be_told_from_one_engine_on_both_sides(tmp_path: Path):
    c = old(sample(), sample()[R]).declaring(algorithm=Algorithm(loss_mode="recompute"))
    report = c.check(tmp_path)
    assert failed(report) == set() and report.rule("old-copies-rollout").passed is None
    assert report.comparable and "old-copies-rollout (not decided)" in report.reason


def test_copies_in_some_steps_only_warn(tmp_path: Path):
    c = old(sample(), sample()[R], first=256, loss=True).declaring(algorithm=Algorithm(loss_mode="bypass"))
    report = c.check(tmp_path)
    warned(report, "old-copies-rollout")
    assert report.context["tokens"] == int((sample().number < 256).sum())


def test_what_the_importer_noted_of_a_copy_is_judged_again(tmp_path: Path):
    finding = ImportFinding(kind="old-copies-rollout", detail="equal in a step", count=1)
    report = with_findings(sample(), finding).check(tmp_path)
    sound(report)
    assert report.rule("old-copies-rollout").evidence["imported"][0]["count"] == 1


@pytest.mark.parametrize("kind", ["truncated-dump", "missing-step", "broken-line"])
def test_what_a_dump_lacks_only_warns(tmp_path: Path, kind: str):
    finding = ImportFinding(kind=kind, detail="half a file", count=2, evidence={"place": "file:3"})
    report = with_findings(resampled(np.random.default_rng(0), 800), finding).check(tmp_path)
    warned(report, "truncated-dump")
    assert report.rule("truncated-dump").evidence["imported"][0]["place"] == "file:3"


@pytest.mark.parametrize(("kind", "rule"), [("off-by-one", "off-by-one"), ("non-finite", "non-finite"),
                                            ("zero-filled-rollout", "placeholder")])  # fmt: skip
def test_what_the_importer_saw_counts_as_the_rules_failure(tmp_path: Path, kind: str, rule: str):
    finding = ImportFinding(kind=kind, detail="seen in the dump", count=1, evidence={"place": "file:7"})
    report = with_findings(resampled(np.random.default_rng(0), 800), finding).check(tmp_path)
    blocked(report, rule)
    assert report.rule(rule).evidence["imported"][0]["place"] == "file:7"


def test_a_text_dump_says_what_it_holds(tmp_path: Path):
    c = with_findings(resampled(np.random.default_rng(0), 200), diagnose="the dump holds texts and rewards")
    c = c.with_tokens(**{R: None, T: None, N: None})
    report = c.check(tmp_path)
    assert not report.comparable and "the dump holds texts and rewards" in report.reason
    assert "timscope.attach" in report.advice


@pytest.mark.parametrize(("gone", "warns"), [(3, True), (7, False)])
def test_steps_without_an_end(tmp_path: Path, gone: int, warns: bool):
    """A step inside that was never finished is a hole; the last one is a job that was stopped."""
    c = sample()
    c.steps = 8
    path = c.write(tmp_path)
    for marker in path.glob(f"*/step={gone:06d}/COMPLETE*"):
        marker.unlink()
    with open_run(path) as run:
        report = run_checks(run)
    if warns:
        warned(report, "truncated-dump")
        assert report.rule("truncated-dump").evidence["incomplete_steps"] == [gone]
    else:
        sound(report)
        assert report.rule("truncated-dump").evidence["unfinished_last_steps"] == [gone]
