"""The decomposition against brute force, its standard errors against a bootstrap, and its two special cases."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from analysis_runs import opened, random_columns, write_run
from hypothesis import given, settings
from hypothesis import strategies as st

from timscope.analysis.decomposition import decompose
from timscope.analysis.formulas import sequence_moments, variance_shares


def three_witnesses(
    seed: int, rollout: float, exact: float, trainer: float, sequences: int = 400
) -> tuple[np.ndarray, ...]:
    """A, Z, C with independent errors of the given standard deviations, and the sequence of each token."""
    rng = np.random.default_rng(seed)
    sequence = np.repeat(np.arange(sequences), rng.integers(1, 40, sequences))
    truth = -rng.exponential(1.0, sequence.size)
    a, z, c = (truth + s * rng.normal(size=sequence.size) for s in (rollout, exact, trainer))
    return a, z, c, sequence


value = st.floats(-3, 3).map(lambda v: round(v, 6))
rows = st.lists(st.tuples(value, value, st.integers(0, 4)), min_size=2, max_size=30)


@settings(max_examples=100, deadline=None)
@given(rows, st.randoms(use_true_random=False))
def test_shares_equal_their_definition_and_ignore_order(found: list[tuple[float, float, int]], random: object) -> None:
    x, y, sequence = (np.array(c) for c in zip(*found, strict=True))
    s = variance_shares(sequence_moments(x, y, sequence))
    assert s.var_rollout == pytest.approx(x.var(), rel=1e-9, abs=1e-12)
    assert s.var_trainer == pytest.approx(y.var(), rel=1e-9, abs=1e-12)
    assert s.covariance == pytest.approx(((x - x.mean()) * (y - y.mean())).mean(), rel=1e-9, abs=1e-12)
    assert s.var_total == pytest.approx((x + y).var(), rel=1e-9, abs=1e-12)
    if (x + y).var() > 1e-6:
        assert s.share_rollout + s.share_trainer + s.share_covariance == pytest.approx(1, abs=1e-9)
        assert s.attributed_rollout + s.attributed_trainer == pytest.approx(1, abs=1e-9)
        order = list(range(len(found)))
        random.shuffle(order)  # type: ignore[attr-defined]
        t = variance_shares(sequence_moments(x[order], y[order], sequence[order] * 7 - 3))
        assert t.share_rollout == pytest.approx(s.share_rollout, rel=1e-9, abs=1e-9)
        assert t.se_attributed == pytest.approx(s.se_attributed, rel=1e-6, abs=1e-9, nan_ok=True)


def test_standard_errors_agree_with_a_bootstrap_over_sequences() -> None:
    a, z, c, sequence = three_witnesses(0, 0.03, 0.01, 0.02)
    # Errors that a whole sequence shares: a token-level standard error would be far too small.
    rng = np.random.default_rng(1)
    a = a + rng.normal(0, 0.03, sequence.max() + 1)[sequence]
    m = sequence_moments(a - z, z - c, sequence)
    found = variance_shares(m)
    draws = []
    for _ in range(600):
        pick = rng.integers(0, m.n.size, m.n.size)
        draws.append(variance_shares(type(m)(*(v[pick] for v in (m.n, m.x, m.y, m.xx, m.yy, m.xy)))))
    for share, se in (
        ("share_rollout", "se_share_rollout"),
        ("share_trainer", "se_share_trainer"),
        ("share_covariance", "se_share_covariance"),
        ("attributed_rollout", "se_attributed"),
        ("mean_rollout", "se_mean_rollout"),
        ("mean_trainer", "se_mean_trainer"),
    ):
        spread = float(np.std([getattr(d, share) for d in draws]))
        assert getattr(found, se) == pytest.approx(spread, rel=0.15), share


def test_attributed_shares_recover_independent_error_variances() -> None:
    """With errors of 0.03, 0.02 and 0.01 the shares are 9/10 and 1/10 although the exact witness is noisy itself."""
    a, z, c, sequence = three_witnesses(2, 0.03, 0.02, 0.01, sequences=4000)
    s = variance_shares(sequence_moments(a - z, z - c, sequence))
    assert s.attributed_rollout == pytest.approx(0.9, abs=4 * s.se_attributed)
    assert s.se_attributed < 0.02
    assert -s.covariance == pytest.approx(0.02**2, rel=0.1)


def test_constant_difference_has_no_shares() -> None:
    s = variance_shares(sequence_moments(np.zeros(4), np.zeros(4), np.array([0, 0, 1, 1])))
    assert np.isnan(s.share_rollout) and s.var_total == 0


def test_sql_equals_the_formulas_on_a_recorded_run(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    columns = random_columns(rng, steps=3)
    n = len(columns["step"])
    z = columns["old_logprob"] + (0.01 * rng.normal(size=n) * (rng.random(n) < 0.5)).astype(np.float32)
    hidden = (columns["step"] == 1) | (rng.random(n) < 0.1)
    write_run(tmp_path, columns, exact=np.ma.array(z, mask=hidden))
    keep = columns["mask"] & ~hidden
    with opened(tmp_path) as run:
        overall, by_step = decompose(run, by_step=False).row(0, named=True), decompose(run)
    assert by_step["step"].to_list() == [0, 2]
    for row, where in ((overall, keep), *((r, keep & (columns["step"] == r["step"])) for r in by_step.to_dicts())):
        a, e, c = (v[where].astype(np.float64) for v in (columns["rollout_logprob"], z, columns["old_logprob"]))
        s = variance_shares(sequence_moments(a - e, e - c, columns["step"][where] * 1000 + columns["sequence"][where]))
        for name in ("var_rollout", "var_trainer", "covariance", "share_rollout", "share_covariance"):
            assert row[name] == pytest.approx(getattr(s, name), rel=1e-9), name
        assert row["attributed_trainer"] == pytest.approx(s.attributed_trainer, rel=1e-9)
        assert row["se_attributed"] == pytest.approx(s.se_attributed, rel=1e-6)
        assert row["tokens"] == where.sum()
        assert row["mean_total"] == pytest.approx((a - c).mean(), rel=1e-9, abs=1e-12)
        assert row["mean_rollout"] == pytest.approx((a - e).mean(), rel=1e-9, abs=1e-12)
        assert row["mean_abs_rollout"] == pytest.approx(abs(a - e).mean(), rel=1e-9)
        assert row["mean_square_total"] == pytest.approx(((a - c) ** 2).mean(), rel=1e-9)
        assert row["exact_equals_trainer"] == pytest.approx((e == c).mean())
        assert row["exact_close_to_trainer"] == pytest.approx((abs(e - c) <= 1e-5).mean())
        assert row["rollout_equals_exact"] == pytest.approx((a == e).mean())
        assert row["identity_residual"] < 1e-14


def test_an_offset_costs_no_digits(tmp_path: Path) -> None:
    """A side that is off by 10 nats everywhere still has its small variance to nine digits."""
    columns = random_columns(np.random.default_rng(4))
    columns["mask"][:] = True
    z = columns["old_logprob"].copy()
    columns["rollout_logprob"] = columns["rollout_logprob"] - np.float32(10)
    with opened(write_run(tmp_path, columns, exact=np.ma.array(z))) as run:
        row = decompose(run, by_step=False).row(0, named=True)
    x = columns["rollout_logprob"].astype(np.float64) - z
    assert row["var_rollout"] == pytest.approx(x.var(), rel=1e-9)
    assert row["mean_rollout"] == pytest.approx(x.mean(), rel=1e-9)


def test_no_replay(tmp_path: Path) -> None:
    with opened(write_run(tmp_path, random_columns(np.random.default_rng(5)))) as run:
        assert decompose(run).height == 0
        row = decompose(run, by_step=False).row(0, named=True)
    assert row["tokens"] == 0 and row["share_rollout"] is None
