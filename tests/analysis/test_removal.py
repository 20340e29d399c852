"""Shares removed against plain numpy, the exact zeros, and the intervals' coverage on made-up data."""

from __future__ import annotations

import numpy as np
import pytest

from timscope.analysis.formulas.removal import removal

RNG = np.random.default_rng(5)


def made(sequences: int = 40, length: int = 50) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    n = sequences * length
    return -RNG.exponential(size=n), RNG.normal(size=n), RNG.normal(size=n), np.repeat(np.arange(sequences), length)


def test_shares_are_those_of_plain_numpy() -> None:
    start, a, b, sequence = made()
    target, swapped = start + 0.3 * a + 0.1 * b + 0.05, start + 0.3 * a
    found = removal(target, start, swapped, sequence)
    before, after, change = target - start, target - swapped, swapped - start
    assert found.mean_abs.value == pytest.approx(1 - np.abs(after).mean() / np.abs(before).mean())
    assert found.variance.value == pytest.approx(1 - after.var() / before.var())
    assert found.explained.value == pytest.approx(np.corrcoef(before, change)[0, 1] ** 2)
    assert found.size == pytest.approx(change.var() / before.var())
    assert found.moved == pytest.approx(np.sqrt((change**2).mean()))
    assert found.variance.low < 0.9 < found.variance.high and found.state == "removes"


def test_a_swap_to_itself_removes_exactly_nothing() -> None:
    start, a, _, sequence = made()
    found = removal(start + a, start, start, sequence)
    for interval in (found.mean_abs, found.variance, found.explained):
        assert (interval.value, interval.low, interval.high) == (0.0, 0.0, 0.0)
    assert found.state == "nothing" and found.size == found.moved == 0.0 and found.equal == 1.0


def test_noise_of_the_same_size_drawn_anew_adds_and_explains_nothing() -> None:
    start, a, b, sequence = made()
    found = removal(start + a, start, start + b, sequence)
    assert found.state == "adds" and found.variance.value == pytest.approx(-1, abs=0.15)
    assert found.explained.value < 0.01 and found.size == pytest.approx(1, abs=0.15)


def test_what_cannot_be_said_is_nan() -> None:
    start, a, _, sequence = made()
    assert np.isnan(removal(start, start, start + a, sequence).variance.value)
    alone = removal(start + a, start, start + 0.9 * a, np.zeros(len(start)))
    assert alone.variance.value == pytest.approx(0.99) and np.isnan(alone.variance.low) and alone.state == "unresolved"
    assert np.isnan(removal([], [], [], []).size)


def test_intervals_go_by_sequence() -> None:
    """All tokens of a sequence share one error: an interval by token would be far too narrow."""
    hits = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        sequence = np.repeat(np.arange(30), 40)
        a, b = (np.repeat(rng.normal(size=30), 40) for _ in range(2))
        found = removal(a + b, np.zeros_like(a), a, sequence, resamples=300, seed=seed)
        hits += found.variance.low <= 0.5 <= found.variance.high
    assert hits >= 50
