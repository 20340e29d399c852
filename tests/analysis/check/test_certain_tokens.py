"""Exact zeros of r: "certain" or "nobody measured it", by how tokens were sampled; and what else looks like a fault."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checking import blocked, failed, sound
from inject import H, R, T, constant, rounded
from recorded import Columns, sample
from simulate import simulated

from timscope.analysis.check.facts import declared
from timscope.analysis.check.placeholders import zero_limit
from timscope.data import Manifest
from timscope.data.manifest import LogprobMode, Sampling


def limit(mode: str | None = "processed", **sampling: Any) -> float:
    logprobs = {R: LogprobMode(mode=mode)}
    return zero_limit(declared(Manifest(sampling=Sampling(**sampling), logprobs=logprobs), T))


def test_the_limit_follows_from_how_much_mass_one_token_may_have():
    assert limit(temperature=1.0, top_p=1.0) == -0.05
    assert limit(temperature=1.0, top_p=0.9) == pytest.approx(math.log(0.9) - 0.5)
    assert limit(temperature=1.0, min_p=0.1) < limit(temperature=1.0, top_p=0.9)
    assert limit(temperature=1.0) == pytest.approx(math.log(0.5) - 0.5)  # the manifest is silent on truncation
    # Of raw log-probs truncation does not matter; of one token left, or none to choose, nothing can be said.
    assert limit("raw", temperature=1.0, top_p=0.9) == -0.05
    assert limit(temperature=1.0, top_k=1) == limit(temperature=0.0) == -math.inf
    # A low temperature sharpens: at T = 0.1 a lead of 1.7 nats is certainty.
    assert limit(temperature=0.1, top_p=1.0) < -1.0 < limit(temperature=0.29, top_p=1.0) < -0.05
    assert limit(temperature=0.3, top_p=1.0) == -0.05


def test_greedy_log_probs_of_zero(tmp_path: Path):
    c = sample()
    zeros = c.with_tokens(**{R: np.zeros_like(c[R])}).declaring(sampling=Sampling(temperature=0.0))
    assert zeros.check(tmp_path).rule("placeholder").passed is True


def nuclei(beyond: int) -> Columns:
    """Sharp contexts under top-p 0.9 are nuclei of one token; `beyond` of the zeros lie below the limit."""
    c = sample()
    r = np.where(c[T] > math.log(0.9), 0.0, c[R]).astype(np.float32)
    r[np.flatnonzero(c[T] < -1.0)[:beyond]] = 0.0
    return c.with_tokens(**{R: r}).declaring(sampling=Sampling(temperature=1.0, top_p=0.9))


@pytest.mark.parametrize(("beyond", "fault"), [(0, False), (20, False), (200, True)])
def test_a_few_nuclei_below_the_limit_are_noise(tmp_path: Path, beyond: int, fault: bool):
    report = nuclei(beyond).check(tmp_path)
    assert ("placeholder" in failed(report)) is fault


def test_placeholders_in_rounded_columns(tmp_path: Path):
    """With one decimal -1.0 is an ordinary value and 0.0 all above -0.05: only more of them are placeholders."""
    for decimals in "12":
        c = rounded(simulated(np.random.default_rng(0), quantised=0.4), decimals)
        assert "placeholder" not in failed(c.check(tmp_path / decimals))
    rows = np.random.default_rng(1).random(len(c.number)) < 0.1
    for value in (-1.0, 0.0):
        assert "placeholder" in failed(constant(c, value, rows).check(tmp_path / f"filled{value}"))


def test_a_nan_of_the_entropy_alone_only_warns(tmp_path: Path):
    report = constant(sample(), np.nan, np.array([5]), H).check(tmp_path)
    assert failed(report) == {"non-finite"} and report.comparable


def test_an_edge_of_the_support_is_named_where_truncation_is_not_declared(tmp_path: Path):
    c = constant(sample(), -np.inf, np.array([5, 100]), T)
    c.manifest = {k: v for k, v in c.manifest.items() if k not in ("sampling", "logprobs")}
    report = c.check(tmp_path)
    blocked(report, "non-finite")
    assert "sampling.top_p" in (report.rule("non-finite").remedy or "")


def test_no_token_with_both_sides(tmp_path: Path):
    c = sample()
    half = np.arange(len(c.number)) % 2 == 0
    whole = c.number % 2 == 0  # whole sequences, so that no column is shorter than the other
    report = c.with_tokens(
        **{R: np.ma.array(c[R], mask=whole), T: np.ma.array(c[T], mask=~whole), "loss_logprob": None}
    ).check(tmp_path)
    assert half.any() and not report.comparable and "no token in the loss has both" in report.reason
    assert failed(report) == set() and "log both sides for the same tokens" in report.advice


def test_a_mask_that_is_nowhere_true(tmp_path: Path):
    c = sample()
    report = c.with_tokens(mask=np.zeros(len(c.number), bool)).check(tmp_path)
    assert not report.comparable and "mask" in report.reason and failed(report) == set()


@pytest.mark.parametrize("temperature", [1.3, 1.6])
def test_divided_by_a_temperature_above_one(tmp_path: Path, temperature: float):
    """r - t >= 0 as under truncation, but in a straight line in the entropy, and declared."""
    run = simulated(np.random.default_rng(3), temperature=temperature, rollout="divided")
    blocked(run.check(tmp_path), "logprob-divided-by-temperature")


def test_top_p_is_not_a_division_by_a_temperature_above_one(tmp_path: Path):
    run = simulated(np.random.default_rng(3), temperature=1.3, top_p=0.85)
    blocked(run.check(tmp_path), "top-p-renormalisation")


def test_without_entropy_units_and_truncation_are_still_told(tmp_path: Path):
    run = simulated(np.random.default_rng(4), top_p=0.8).with_tokens(**{H: None})
    blocked(run.check(tmp_path / "cut"), "top-p-renormalisation")
    sound(simulated(np.random.default_rng(4)).with_tokens(**{H: None}).check(tmp_path / "sound"))
