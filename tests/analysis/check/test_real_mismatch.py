"""Large but honest mismatches: the same tokens, both sides true log-probs. No rule of the data may claim them.

Quantised rollouts, stale weights and experts that flip are what timscope is there to measure (rules 14, 24 and 27 of
the fault list), and each imitates some fault of the log: heavy tails, decay, one-sided differences.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checking import blocked, failed, sound, warned
from inject import R, T, rounded
from recorded import sample
from simulate import simulated

CASES: dict[str, dict[str, Any]] = {
    "quantised": {"quantised": 0.15},
    "heavily quantised": {"quantised": 0.4},
    "a few versions stale": {"stale": 0.1},
    "many versions stale": {"stale": 0.5},
    "experts flip": {"noise": 0.02, "flips": 0.03},
    "experts flip often": {"noise": 0.02, "flips": 0.2},
    "quantised, cold": {"quantised": 0.1, "temperature": 0.5},
    "eight sequences": {"quantised": 0.4, "sequences": 8},
}


@pytest.mark.parametrize("case", CASES)
def test_an_honest_mismatch_is_comparable(tmp_path: Path, case: str):
    for seed in range(4):
        report = simulated(np.random.default_rng(seed), **CASES[case]).check(tmp_path / str(seed))
        sound(report)
        # It is large, and the rules were asked.
        assert report.context["mean_abs"] > 0.03 and report.context["mean_weight"]["valid"] is True
        assert report.rule("temperature-one-sided").passed and report.rule("top-p-renormalisation").passed


@pytest.mark.parametrize("case", ["heavily quantised", "many versions stale", "experts flip often"])
def test_stored_in_bf16_it_has_no_placeholders(tmp_path: Path, case: str):
    """One of 150 values around -1 is -1.0 exactly, and a large mismatch puts some of those half a nat apart."""
    apart = 0
    for seed in range(4):
        coarse = rounded(simulated(np.random.default_rng(seed), **CASES[case]), "bf16")
        apart += int(((coarse[R] == -1.0) & (np.abs(coarse[T] + 1.0) > 0.5)).sum())
        warned(coarse.check(tmp_path / str(seed)), "storage-dtype")
    assert apart > 0


def test_a_placeholder_is_found_in_bf16_as_well(tmp_path: Path):
    coarse = rounded(simulated(np.random.default_rng(0), **CASES["heavily quantised"]), "bf16")
    r = coarse[R].copy()
    r[np.random.default_rng(1).random(len(r)) < 0.02] = -1.0
    report = coarse.with_tokens(**{R: r}).check(tmp_path)
    assert failed(report) == {"storage-dtype", "placeholder"} and not report.comparable


def test_of_few_sequences_more_deviation_is_allowed(tmp_path: Path):
    few = simulated(np.random.default_rng(0), sequences=8).check(tmp_path / "few").context["mean_weight"]
    many = simulated(np.random.default_rng(0), sequences=80).check(tmp_path / "many").context["mean_weight"]
    assert few["largest_sound_z"] > 15 and 5 < many["largest_sound_z"] < 6


def test_a_deviation_that_no_figure_would_feel_is_allowed(tmp_path: Path):
    """E[w] off by 1 % of mean |d|, with certainty: a filter by reward does that to a long log."""
    c = sample()
    d = c["old_logprob"].astype(np.float64) - c[R]
    excess = np.expm1(d).mean()
    small = c.with_tokens(**{R: (c[R] + excess + 0.01 * np.abs(d).mean()).clip(max=-1e-6).astype(np.float32)})
    assert small.check(tmp_path / "small").comparable
    large = c.with_tokens(**{R: (c[R] - 0.5 * np.abs(d).mean()).astype(np.float32)})
    report = large.check(tmp_path / "large")
    assert not report.comparable and "E[w]" in report.reason and "importance correction" in report.advice


def test_weights_with_a_heavy_tail_are_seen_by_their_cap(tmp_path: Path):
    """Behind a shift E[w] is 800 with a z of 3, so that its own test says nothing; min(w, 4) has a mean above 1."""
    c = sample()
    lagged = np.roll(c[R], 9)  # beyond the lags that can be undone
    report = c.with_tokens(**{R: lagged, "loss_logprob": None}).check(tmp_path)
    blocked(report, "different-inputs")
    weight = report.context["mean_weight"]
    assert weight["mean"] > 10 and abs(weight["z"]) < 5 and weight["capped_z"] > 8 and weight["valid"] is False
