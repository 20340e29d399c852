"""Rule 8: other inputs on one side, by ids, by columns that are not of the same tokens, or by the trace in |d|."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checking import blocked, failed, sound
from inject import R, T, constant, noisy, place, shifted
from recorded import Columns, sample
from simulate import simulated

NAME = "different-inputs"


def engine_prompts(c: Columns, wrong: int = 0) -> Columns:
    """The engine's prompts are logged; the first `wrong` of them lack the trainer's first token."""
    prompts = [ids[1:] if i < wrong else ids for i, ids in enumerate(c.rows["prompt_ids"])]
    return c.with_rows(engine_prompt_ids=prompts)


def test_equal_prompts(tmp_path: Path):
    report = engine_prompts(sample()).check(tmp_path)
    sound(report)
    assert "512 prompts are the same" in report.rule(NAME).detail


def test_one_prompt_without_its_first_token(tmp_path: Path):
    report = engine_prompts(sample(), 1).check(tmp_path)
    blocked(report, NAME)
    (row,) = report.rule(NAME).evidence["rows"]
    ids = sample().rows["prompt_ids"][0]
    assert (row["sequence"], row["index"], row["trainer_tokens"], row["engine_tokens"]) == (
        0,
        0,
        len(ids),
        len(ids) - 1,
    )
    assert row["trainer"] == ids[:4] and row["engine"] == ids[1:5]


def test_ids_decide_where_no_token_can_be_compared(tmp_path: Path):
    c = engine_prompts(sample(), 3).with_tokens(**{R: None})
    report = c.check(tmp_path)
    assert failed(report) == {NAME} and report.rule(NAME).evidence["sequences_that_differ"] == 3


def test_a_difference_that_fades_along_the_response(tmp_path: Path):
    rng = np.random.default_rng(0)
    c = simulated(rng, noise=0.02, sequences=60, length=120)
    report = noisy(c, place(c) < 20, 0.3).check(tmp_path)
    blocked(report, NAME)
    assert report.rule(NAME).evidence["early_late_ratio"] > 5


def test_the_first_token_alone_is_an_expert_models_own(tmp_path: Path):
    # miles#2722: a mixture of experts may peak at token 0 with equal inputs.
    c = simulated(np.random.default_rng(0), noise=0.02, sequences=60, length=120)
    assert NAME not in failed(noisy(c, place(c) == 0, 0.3).check(tmp_path))


def other_rows(c: Columns, share: float) -> Columns:
    """The trainer's columns of some sequences are those of others of their length."""
    t, out, rng = c[T], c[T].copy(), np.random.default_rng(0)
    length = np.bincount(c.number)
    for n in np.unique(length):
        ids = np.flatnonzero(length == n)
        ids = ids[rng.random(len(ids)) < share]
        for a, b in zip(ids, np.roll(ids, len(ids) // 2), strict=True):
            out[c.starts[a] : c.starts[a] + n] = t[c.starts[b] : c.starts[b] + n]
    return c.with_tokens(**{T: out, "loss_logprob": None})


def test_rows_in_another_order(tmp_path: Path):
    report = other_rows(sample(), 1.0).check(tmp_path)
    blocked(report, NAME)
    evidence = report.rule(NAME).evidence
    assert evidence["unrelated"] is True and 0.8 < evidence["over_random_pairs"] < 1.0
    # z of E[w] alone saw nothing: the tail is too heavy.
    weight = report.context["mean_weight"]
    assert abs(weight["z"]) < 5 < weight["capped_z"] and weight["valid"] is False
    for name in ("units", "temperature-one-sided", "top-p-renormalisation", "penalties"):
        assert report.rule(name).detail == f"fix {NAME} first"


def test_some_rows_of_others_are_left_out(tmp_path: Path):
    report = other_rows(sample(), 0.2).check(tmp_path)
    blocked(report, NAME)
    evidence = report.rule(NAME).evidence
    assert evidence["unrelated"] is False and 10 <= evidence["foreign_sequences"] <= 20
    assert all(row["over_random_pairs"] > 0.5 for row in evidence["rows"])
    assert report.context["undone"] == [NAME] and report.rule("units").passed is True


@pytest.mark.parametrize("lag", [3, -5])
def test_a_shift_beyond_the_lags_that_are_tried(tmp_path: Path, lag: int):
    report = shifted(sample(), lag).with_tokens(loss_logprob=None).check(tmp_path)
    blocked(report, NAME)


def test_tokens_scored_with_themselves_in_view(tmp_path: Path):
    # maxtext#2103: uniformly very negative, no lag repairs it, and no truncation by mistake.
    c = simulated(np.random.default_rng(1), noise=0.02)
    t = np.random.default_rng(2).normal(-7, 2, len(c.number)).clip(max=-0.1)
    report = c.with_tokens(**{T: t.astype(np.float32)}).check(tmp_path)
    blocked(report, NAME)


def test_zeros_behind_a_wrong_order_are_left_for_later(tmp_path: Path):
    c = other_rows(sample(), 1.0)
    report = constant(c, 0.0, np.array([10]), T).check(tmp_path / "few")
    assert report.rule("placeholder").detail == f"fix {NAME} first"
    many = constant(c, 0.0, np.random.default_rng(0).random(len(c.number)) < 0.05, T).check(tmp_path / "many")
    assert "placeholder" in failed(many)
