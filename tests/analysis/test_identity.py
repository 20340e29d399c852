"""E[w] = 1: it holds for any true log-prob, fails for faults of the data, and needs sums over sequences."""

from __future__ import annotations

import numpy as np
import pytest
from analysis_runs import categorical_run

from timscope.analysis.formulas import pair, unit_mean_test


def outcome(columns: dict[str, np.ndarray]) -> tuple[float, float]:
    p = pair(columns["rollout_logprob"], columns["old_logprob"], columns["mask"], columns["sequence"])
    found = unit_mean_test(p)
    return found.mean, found.z


@pytest.mark.parametrize("seed", range(5))
def test_a_real_difference_of_models_keeps_the_mean_weight_at_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mean, z = outcome(categorical_run(rng, sequences=64, length=60, noise=0.2))
    assert abs(z) < 5
    assert mean == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_raw_log_probs_of_tempered_samples_do_not(seed: int) -> None:
    rng = np.random.default_rng(seed)
    _mean, z = outcome(categorical_run(rng, sequences=64, length=60, noise=0.02, temperature=0.6))
    assert abs(z) > 5


def test_an_end_token_biases_the_mean_of_sequence_means_but_not_the_sums() -> None:
    """Left ends with probability 0.10 at each token, right with 0.08: valid data, as both are normalised."""
    rng = np.random.default_rng(0)
    lengths = rng.geometric(0.10, 20_000)
    sequence = np.repeat(np.arange(lengths.size), lengths)
    last = np.r_[np.diff(sequence) > 0, True]
    left = np.where(last, np.log(0.10), np.log(0.90))
    right = np.where(last, np.log(0.08), np.log(0.92))
    found = unit_mean_test(pair(left, right, None, sequence))
    assert abs(found.z) < 4
    assert found.mean == pytest.approx(1, abs=0.005)
    assert found.z_sequence_means < -20
    per_sequence = np.bincount(sequence, np.exp(right - left)) / lengths
    assert per_sequence.mean() == pytest.approx(0.965, abs=0.003)


def test_constant_weights() -> None:
    assert unit_mean_test(pair([-1.0] * 4, [-1.0] * 4, None, [0, 0, 1, 1])).z == 0
    assert unit_mean_test(pair([-1.0] * 4, [-2.0] * 4, None, [0, 0, 1, 1])).z == -np.inf
    assert np.isnan(unit_mean_test(pair([-1.0], [-2.0])).z)
