"""TRL's own numbers: its weighting by hand, in SQL, and against what a real run logged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from analysis_runs import opened, random_columns, write_run

from timscope.analysis.frameworks import TRL_MAX, TRL_MEAN, trl_gaps, trl_logp_difference
from timscope.data import RunWriter

SAMPLES = Path(__file__).parents[2] / "data" / "samples"


def test_mean_of_rank_means() -> None:
    """Rank 0 holds one token of 1 nat, rank 1 three of 0.2: TRL says 0.6, the pooled mean would be 0.4."""
    nan = float("nan")
    frame = pl.DataFrame(
        {
            "step": [1] * 6 + [2],
            "rank": [0, 1, 1, 1, 1, 0, 0],
            "mask": [True, True, True, True, True, False, False],
            "rollout_logprob": [-1.0, -1.0, -1.0, -1.0, nan, -9.0, -1.0],
            "old_logprob": [-2.0, -1.2, -0.8, -1.2, -1.0, 0.0, -2.0],
        }
    )
    found = trl_logp_difference(frame)
    assert found["step"].to_list() == [1, 2]
    assert found["mean"].to_list() == pytest.approx([0.6, 0.0])
    assert found["max"].to_list() == pytest.approx([1.0, 0.0])


def test_sql_equals_the_frame_helper_over_ranks(tmp_path: Path) -> None:
    columns = random_columns(np.random.default_rng(0), steps=2, sequences=6)
    ranks = {s: {"rank": np.unique(columns["sequence"][columns["step"] == s]) % 2} for s in (0, 1)}
    steps = {s: {"loss": [0.0], TRL_MEAN: [0.1], TRL_MAX: [0.2]} for s in (0, 1)}
    with opened(write_run(tmp_path, columns, sequences=ranks, steps=steps)) as run:
        gaps = trl_gaps(run)
        frame = run.tokens().join(run.sequences().select("step", "sequence", "rank"), on=["step", "sequence"])
    expected = trl_logp_difference(frame)
    assert gaps is not None
    assert gaps["mean"].to_list() == pytest.approx(expected["mean"].to_list(), rel=1e-12)
    assert gaps["max"].to_list() == expected["max"].to_list()
    assert gaps["mean_logged"].to_list() == [0.1, 0.1]


def test_a_run_of_another_framework_has_no_such_check(tmp_path: Path) -> None:
    with opened(write_run(tmp_path, random_columns(np.random.default_rng(1)))) as run:
        assert trl_gaps(run) is None


def sample_runs() -> list[Path]:
    return sorted(p.parent for p in SAMPLES.glob("*/manifest.json"))


@pytest.mark.skipif(not sample_runs(), reason="no sample run is bundled in data/samples")
def test_the_sample_runs_reproduce_what_trl_logged() -> None:
    """TRL averages in float32, so six digits is all that its log can hold."""
    for path in sample_runs():
        with opened(path) as run:
            gaps = trl_gaps(run)
            frame = run.tokens().join(run.sequences().select("step", "sequence", "rank"), on=["step", "sequence"])
        assert gaps is not None and gaps.height > 0, path
        assert gaps["mean"].to_list() == pytest.approx(gaps["mean_logged"].to_list(), rel=1e-5), path
        assert gaps["max"].to_list() == pytest.approx(gaps["max_logged"].to_list(), rel=1e-5), path
        by_hand = trl_logp_difference(frame).join(gaps.select("step"), on="step")
        assert by_hand["mean"].to_list() == pytest.approx(gaps["mean"].to_list(), rel=1e-9)


def test_the_writer_keeps_trl_names(tmp_path: Path) -> None:
    with RunWriter(tmp_path, strict=True) as writer:
        writer.put("steps", 1, {"loss": [0.0], TRL_MEAN: [0.25], TRL_MAX: [0.5]})
        writer.complete(1)
    with opened(tmp_path) as run:
        gaps = trl_gaps(run)
    assert gaps is not None and gaps.height == 0
