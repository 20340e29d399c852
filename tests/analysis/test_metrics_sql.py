"""The SQL metrics equal the formulas to 1e-9 on runs written and read through the real run format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from analysis_runs import assert_same, opened, random_columns, reference, write_run

from timscope.analysis.metrics import pair_metrics
from timscope.data import BadInput

PAIR = ("rollout_logprob", "old_logprob")


def check(path: Path, left: str = PAIR[0], right: str = PAIR[1]) -> None:
    with opened(path) as run:
        overall = pair_metrics(run, left, right, by_step=False).row(0, named=True)
        expected = reference(run, left, right)
        assert set(overall) == set(expected)
        assert_same(overall, expected)
        by_step = pair_metrics(run, left, right)
        assert by_step["step"].to_list() == sorted(run.tokens().filter("mask")["step"].unique())
        for row in by_step.to_dicts():
            assert_same(row, reference(run, left, right, row["step"]))


@pytest.mark.parametrize("scale", [1e-7, 1e-3, 0.05, 1.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_random_runs(tmp_path: Path, seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    check(write_run(tmp_path, random_columns(rng, scale=scale)))


def test_missing_infinite_and_huge_values(tmp_path: Path) -> None:
    columns = random_columns(np.random.default_rng(2))
    n = len(columns["step"])
    left, right = columns["rollout_logprob"], columns["old_logprob"]
    left[5], left[6], right[7], right[8] = -np.inf, -1000, np.inf, -900
    columns["mask"][:12] = True
    columns["rollout_logprob"] = np.ma.array(left, mask=np.arange(n) % 11 == 0)
    columns["old_logprob"] = np.ma.array(right, mask=np.arange(n) % 13 == 0)
    check(write_run(tmp_path, columns))
    with opened(tmp_path) as run:
        row = pair_metrics(run, by_step=False).row(0, named=True)
    assert row["k3"] == np.inf and row["chi2_token"] == np.inf
    assert np.isfinite(row["k3_clamped"]) and row["nonfinite"] == 2
    assert row["missing_left"] > 0 and row["missing_right"] > 0
    assert row["mean_weight_z"] is None


def test_nan_is_counted_apart_from_missing(tmp_path: Path) -> None:
    columns = random_columns(np.random.default_rng(3))
    columns["mask"][:] = True
    columns["old_logprob"][3] = np.nan
    write_run(tmp_path, columns)
    with opened(tmp_path) as run:
        row = pair_metrics(run, by_step=False).row(0, named=True)
    assert (row["nonfinite"], row["missing_right"]) == (1, 0)
    assert row["tokens"] == len(columns["step"]) - 1
    assert np.isfinite(row["mean_abs"])


def test_equal_columns_and_single_tokens(tmp_path: Path) -> None:
    columns = random_columns(np.random.default_rng(4), steps=2, sequences=3, length=1)
    columns["mask"][:] = True
    columns["old_logprob"] = columns["rollout_logprob"].copy()
    check(write_run(tmp_path, columns))
    with opened(tmp_path) as run:
        row = pair_metrics(run, by_step=False).row(0, named=True)
    assert row["exact_equal"] == 1 and row["k3"] == 0 and row["mean_weight_z"] == 0 and row["ess_token"] == 1


def test_the_exact_witness_by_letter(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    columns = random_columns(rng)
    exact = columns["old_logprob"] + np.float32(1e-6) * rng.normal(size=len(columns["step"])).astype(np.float32)
    write_run(tmp_path, columns, exact=np.ma.array(exact, mask=columns["step"] == 2))
    check(tmp_path, "exact_logprob", "old_logprob")
    with opened(tmp_path) as run:
        a, b = pair_metrics(run, "Z", "C"), pair_metrics(run, "exact_logprob", "old_logprob")
        assert a.select("step", "tokens", "max_abs").equals(b.select("step", "tokens", "max_abs"))
        assert a.filter(a["step"] == 2)["tokens"].item() == 0


def test_masked_rows_appended_change_nothing(tmp_path: Path) -> None:
    columns = random_columns(np.random.default_rng(6))
    more = {k: np.concatenate([v, v[:20]]) for k, v in columns.items()}
    more["sequence"][-20:] += 1000
    more["mask"][-20:] = False
    with opened(write_run(tmp_path / "a", columns)) as a, opened(write_run(tmp_path / "b", more)) as b:
        found, expected = (pair_metrics(run, by_step=False).row(0, named=True) for run in (b, a))
    assert_same(found, expected, rel=1e-12)


def test_a_run_without_one_witness_has_no_figures(tmp_path: Path) -> None:
    columns = random_columns(np.random.default_rng(7))
    del columns["rollout_logprob"]
    with opened(write_run(tmp_path, columns)) as run:
        row = pair_metrics(run, by_step=False).row(0, named=True)
    assert row["tokens"] == 0 and row["mean_abs"] is None and row["missing_left"] == columns["mask"].sum()


def test_unknown_columns_are_bad_input(tmp_path: Path) -> None:
    with opened(write_run(tmp_path, random_columns(np.random.default_rng(8)))) as run:
        with pytest.raises(BadInput, match="is no log-prob column"):
            pair_metrics(run, "rollout_logprob; DROP TABLE tokens")
        with pytest.raises(BadInput):
            pair_metrics(run, "Q")
