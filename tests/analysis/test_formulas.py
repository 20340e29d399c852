"""The formulas against a brute-force definition, and what must not change them: order, masked rows, overflow."""

from __future__ import annotations

import math

import numpy as np
import pytest
from analysis_runs import assert_same
from brute_force import Token, brute_force
from hypothesis import given, settings
from hypothesis import strategies as st

from timscope.analysis import formulas as f

logprob = st.one_of(st.just(0.0), st.floats(-40, -1e-6))
# Two float32 log-probs differ by 1e-9 at least or not at all; squares of less than 1e-150 would underflow.
size = st.one_of(st.just(0.0), st.floats(1e-9, 1e-6), st.floats(1e-6, 0.2), st.floats(0.2, 30))
gap = st.tuples(size, st.sampled_from((-1, 1))).map(lambda t: t[0] * t[1])
token = st.tuples(logprob, gap, st.integers(0, 5)).map(lambda t: (t[0], min(t[0] + t[1], 0.0), t[2]))
tokens = st.lists(token, min_size=1, max_size=40)

Z_NAMES = ("mean_weight_z", "mean_weight_z_sequence_means")


def arrays(rows: list[Token]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return tuple(np.array([row[i] for row in rows]) for i in range(3))  # type: ignore[return-value]


def summary(rows: list[Token]) -> dict[str, float]:
    left, right, sequence = arrays(rows)
    return f.summarise(f.pair(left, right, None, sequence))


def well_spread(rows: list[Token]) -> bool:
    """Pearson and z divide by a spread; where that is rounding only, no two ways of computing agree."""
    left, right, sequence = arrays(rows)
    excess = f.pair(left, right, None, sequence)
    sums = excess.sums(np.expm1(excess.d))
    means = sums / excess.lengths
    columns = (left, right, np.exp(left), np.exp(right))
    spread = all(c.std() > 1e-4 * abs(c).max() for c in columns)
    return spread and all(v.size < 2 or v.std() > 1e-6 * abs(v).max() for v in (sums, means))


@settings(max_examples=150, deadline=None)
@given(tokens)
def test_every_estimator_equals_its_brute_force_definition(rows: list[Token]) -> None:
    expected = brute_force(rows)
    if not well_spread(rows):
        expected = {k: v for k, v in expected.items() if not k.startswith("pearson") and k not in Z_NAMES}
    found = summary(rows)
    assert_same(found, expected)
    assert found["tokens"] == len(rows)
    assert found["sequences"] == len({row[2] for row in rows})


@settings(max_examples=60, deadline=None)
@given(tokens, st.randoms(use_true_random=False))
def test_order_of_tokens_does_not_matter(rows: list[Token], random: object) -> None:
    before = summary(rows)
    shuffled = rows.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    expected = {k: v for k, v in before.items() if well_spread(rows) or not (k.startswith("pearson") or "_z" in k)}
    expected.pop("mean_weight_se")
    assert_same(summary(shuffled), expected)


@settings(max_examples=60, deadline=None)
@given(tokens, st.integers(1, 5))
def test_fully_masked_rows_change_nothing(rows: list[Token], extra: int) -> None:
    left, right, sequence = arrays(rows)
    mask = np.r_[np.ones(len(rows), bool), np.zeros(extra, bool)]
    junk = np.full(extra, np.nan)
    longer = f.pair(np.r_[left, junk], np.r_[right, junk], mask, np.r_[sequence, np.arange(100, 100 + extra)])
    assert f.summarise(longer) == pytest.approx(f.summarise(f.pair(left, right, None, sequence)), nan_ok=True, rel=0)


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_log_perplexity_is_not_diluted_by_masked_rows(rows: int) -> None:
    """verl#7771: t = -2, r = -1 everywhere gives 1.0 and 7.389056, however many fully masked rows are appended."""
    r, t = np.full((2 + rows, 4), -1.0), np.full((2 + rows, 4), -2.0)
    mask = np.zeros_like(r, dtype=bool)
    mask[:2] = True
    found = f.log_perplexities(f.pair(r, t, mask))
    assert found.log_ppl_abs_diff == 1.0
    assert found.right_ppl == pytest.approx(7.389056, abs=5e-7)


def test_direction_of_k3() -> None:
    """NeMo-RL's example: r = -5, t = -15 gives 9 forward and 22,015 in the reverse form."""
    d = f.pair([-5.0], [-15.0]).d
    assert f.k3(d) == pytest.approx(9, abs=1e-4)
    assert f.k3_reverse(d) == pytest.approx(22_015, rel=1e-4)


def test_small_differences_keep_their_digits() -> None:
    d = np.array([1e-8, -1e-8, 3e-7])
    assert f.k3(d) == pytest.approx(float((d * d / 2).mean()), rel=1e-6)
    assert f.chi2_token(np.array([1e-9, 1e-9])) == pytest.approx(2e-9, rel=1e-8)


def test_overflow_is_inf_and_never_nan() -> None:
    p = f.pair([-1000.0, -1.0], [-1.0, -1.0], None, [0, 1])
    s = f.summarise(p)
    for name in ("k3", "chi2_token", "chi2_sequence", "mean_exp_abs", "mean_weight"):
        assert s[name] == math.inf, name
    assert s["k3_reverse"] == pytest.approx((999 - 1) / 2)
    for name in ("k3_clamped", "chi2_token_clamped", "chi2_sequence_clamped"):
        assert math.isfinite(s[name]), name
    assert s["ess_token"] == pytest.approx(0.5)
    assert math.isnan(s["mean_weight_z"])


def test_non_finite_and_missing_are_counted_and_left_out() -> None:
    """inf times a zero mask must not become NaN (NeMo-RL#4154), and -inf inside the mask is counted, never averaged."""
    left = np.array([-1.0, np.nan, -1.0, -np.inf, -1.0])
    right = np.array([-1.5, -1.0, np.nan, -1.0, np.inf])
    p = f.pair(left, right, np.array([1, 1, 1, 1, 0]))
    assert (p.missing_left, p.missing_right, p.nonfinite, p.left.size) == (1, 1, 1, 1)
    assert f.summarise(p)["mean_abs"] == 0.5


def test_nothing_gives_nan_without_a_warning() -> None:
    with np.errstate(all="raise"):
        s = f.summarise(f.pair([], []))
    counts = {"tokens", "sequences", "missing_left", "missing_right", "nonfinite"}
    assert all(v == 0 if k in counts else math.isnan(v) for k, v in s.items())


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="shapes differ"):
        f.pair([1.0], [1.0, 2.0])
