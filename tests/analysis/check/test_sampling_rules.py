"""Rules 5 and 9 to 13 on real log-probs where the fault can be put in, on small simulated models where it cannot."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from checking import blocked, failed
from inject import R, offset, repeated_ids, scaled, tempered
from recorded import sample
from simulate import simulated

from timscope.data.manifest import Sampling


@pytest.mark.parametrize("factor", [1 / math.log(2), 1 / math.log(10), math.log(2)])
def test_other_units(tmp_path: Path, factor: float):
    report = scaled(sample(), factor).check(tmp_path)
    blocked(report, "units")
    evidence = report.rule("units").evidence
    assert evidence["factor"] == pytest.approx(factor) and evidence["scale"] == pytest.approx(factor, rel=0.01)
    assert evidence["mean_abs_after_repair"] == pytest.approx(0.0447, rel=0.01)


def test_a_negated_log_prob_is_also_above_zero(tmp_path: Path):
    blocked(scaled(sample(), -1.0).check(tmp_path), "integrity", "units")


@pytest.mark.parametrize(
    ("temperature", "side"), [(0.9, "rollout"), (0.9, "trainer"), (1.1, "rollout"), (0.95, "trainer")]
)
def test_a_temperature_put_into_real_log_probs(tmp_path: Path, temperature: float, side: str):
    report = tempered(sample(), temperature, side).check(tmp_path)
    blocked(report, "temperature-one-sided")
    evidence = report.rule("temperature-one-sided").evidence
    assert evidence[f"T_hat_if_{side}_tempered"] == pytest.approx(temperature, abs=0.02)


@pytest.mark.parametrize("temperature", [0.6, 0.8, 0.9, 1.2])
@pytest.mark.parametrize(("rollout", "trainer", "raw"), [("raw", None, "rollout"), ("processed", 1.0, "old")])
def test_the_raw_side_is_named(tmp_path: Path, temperature: float, rollout: str, trainer: float | None, raw: str):
    rng = np.random.default_rng(int(100 * temperature))
    run = simulated(rng, temperature=temperature, rollout=rollout, trainer_temperature=trainer)
    report = run.check(tmp_path)
    blocked(report, "temperature-one-sided")
    evidence = report.rule("temperature-one-sided").evidence
    assert evidence["raw_side"] == raw
    assert evidence["T_hat"] == pytest.approx(temperature, abs=0.03)
    assert report.rule("top-p-renormalisation").passed is None  # not to be told behind a temperature


@pytest.mark.parametrize("temperature", [0.6, 0.8, 1.25])
def test_a_log_prob_divided_after_the_softmax(tmp_path: Path, temperature: float):
    report = scaled(sample(), 1 / temperature).check(tmp_path)
    blocked(report, "logprob-divided-by-temperature")
    assert report.rule("logprob-divided-by-temperature").evidence["T_hat"] == pytest.approx(temperature, abs=0.01)


def test_division_and_base_two_are_told_apart_by_the_declared_temperature(tmp_path: Path):
    # 1 / 0.7 is 1 % from 1 / ln 2.
    divided = scaled(sample(), 1 / 0.7)
    blocked(
        divided.declaring(sampling=Sampling(temperature=0.7)).check(tmp_path / "a"), "logprob-divided-by-temperature"
    )
    blocked(divided.check(tmp_path / "b"), "units")


@pytest.mark.parametrize("temperature", [0.9, 1.2])
def test_divided_against_a_trainer_at_that_temperature(tmp_path: Path, temperature: float):
    run = simulated(np.random.default_rng(3), temperature=temperature, rollout="divided")
    report = run.check(tmp_path)
    blocked(report, "logprob-divided-by-temperature")
    assert report.rule("logprob-divided-by-temperature").evidence["T_hat"] == pytest.approx(temperature, abs=0.03)


@pytest.mark.parametrize("declare", [True, False])
@pytest.mark.parametrize("top_p", [0.8, 0.95])
def test_top_p(tmp_path: Path, top_p: float, declare: bool):
    report = simulated(np.random.default_rng(4), top_p=top_p, declare=declare).check(tmp_path)
    blocked(report, "top-p-renormalisation")
    evidence = report.rule("top-p-renormalisation").evidence
    assert evidence["kept_mass_where_flat"] == pytest.approx(top_p, abs=0.02)
    assert evidence["weight_z"] < -10 and evidence["mean_weight"] < 1


@pytest.mark.parametrize(("cut", "declare"), [({"top_k": 5}, True), ({"top_k": 30}, False), ({"min_p": 0.1}, True)])
def test_top_k_and_min_p(tmp_path: Path, cut: dict[str, float], declare: bool):
    report = simulated(np.random.default_rng(5), declare=declare, **cut).check(tmp_path)
    blocked(report, "top-k-renormalisation")
    assert "entropy" in report.rule("top-k-renormalisation").detail


def test_a_repetition_penalty(tmp_path: Path):
    report = simulated(np.random.default_rng(6), penalty=1.2).check(tmp_path)
    blocked(report, "penalties")
    repeated = report.rule("penalties").evidence["repeated"]
    assert repeated["difference"] < -0.1 and repeated["z"] < -10


def test_a_penalty_put_into_real_log_probs(tmp_path: Path):
    c = sample()
    report = offset(c, repeated_ids(c), -0.3).check(tmp_path)
    blocked(report, "penalties")
    assert report.rule("penalties").evidence["repeated"]["difference"] == pytest.approx(-0.31, abs=0.02)


def test_a_logit_bias_names_the_id(tmp_path: Path):
    report = simulated(np.random.default_rng(7), bias=(3, 2.0)).check(tmp_path)
    blocked(report, "penalties")
    first = report.rule("penalties").evidence["ids"][0]
    assert first["token_id"] == 3 and first["mean"] > 0.5


def test_a_bias_put_into_real_log_probs(tmp_path: Path):
    c = sample()
    report = offset(c, c["token_id"] == 30, -1.0).check(tmp_path)
    blocked(report, "penalties")
    first = report.rule("penalties").evidence["ids"][0]
    assert (first["token_id"], first["tokens"]) == (30, 421) and first["mean"] == pytest.approx(-1.07, abs=0.03)


def test_weights_that_are_not_one_on_average_block_without_a_name(tmp_path: Path):
    c = sample()
    report = c.with_tokens(**{R: (c[R] - 0.05).astype(np.float32)}).check(tmp_path)
    assert failed(report) == set()
    assert not report.comparable and "E[w]" in report.reason
    assert report.context["mean_weight"]["valid"] is False
