"""The figures draw from a real run directory, mark every series twice (colour and shape), and stay small."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from analysis_runs import opened, random_columns, write_run
from matplotlib.figure import Figure

from timscope.analysis import figure_data, plots


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    columns = random_columns(rng, steps=4, sequences=20, length=200)
    n = len(columns["step"])
    exact = columns["old_logprob"] + (1e-6 * rng.normal(size=n) * (rng.random(n) < 0.8)).astype(np.float32)
    return write_run(tmp_path_factory.mktemp("run"), columns, exact=np.ma.array(exact, mask=columns["step"] > 1))


def marks(figure: Figure) -> int:
    points = sum(len(np.asarray(line.get_xdata())) for ax in figure.axes for line in ax.get_lines())
    return points + sum(len(np.asarray(c.get_offsets())) for ax in figure.axes for c in ax.collections)


@pytest.mark.parametrize("number", range(len(plots.REPORT)))
def test_every_figure_of_the_report_is_a_png(replayed: Path, number: int) -> None:
    title, caption, draw = plots.REPORT[number]
    with opened(replayed) as run:
        figure = draw(run)
    assert figure is not None and title and caption
    assert marks(figure) <= figure_data.MAX_MARKS
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=60)
    assert buffer.getvalue().startswith(b"\x89PNG")


def test_exact_zeros_are_in_the_legend(replayed: Path) -> None:
    with opened(replayed) as run:
        figure = plots.plot_distribution(run)
        zeros = run.sql("SELECT avg((exact_logprob = old_logprob)::INT) FROM witnesses WHERE mask AND step < 2")
    assert figure is not None
    legend = figure.axes[0].get_legend()
    assert legend is not None
    text = legend.get_texts()[2].get_text()
    assert f"{100 * zeros.item():.1f} % exactly 0" in text


def test_the_distribution_counts_every_token(replayed: Path) -> None:
    with opened(replayed) as run:
        frame = figure_data.distribution(run, "rollout_logprob", "old_logprob")
        tokens = run.tokens().filter("mask")
    d = abs(tokens["old_logprob"].to_numpy().astype(float) - tokens["rollout_logprob"].to_numpy().astype(float))
    assert frame["tokens"].sum() == len(d)
    in_bin = ((d >= 10 ** (-16 / 8)) & (d < 10 ** (-15 / 8))).sum()
    assert frame.filter(frame["bin"] == -16)["tokens"].sum() == in_bin


def test_without_a_replay_two_figures_remain(tmp_path: Path) -> None:
    with opened(write_run(tmp_path, random_columns(np.random.default_rng(1)))) as run:
        drawn = [draw(run) is not None for _title, _caption, draw in plots.REPORT]
    assert drawn == [True, True, False, False]


def test_without_rollout_log_probs_nothing_is_drawn(tmp_path: Path) -> None:
    columns = random_columns(np.random.default_rng(2))
    del columns["rollout_logprob"]
    with opened(write_run(tmp_path, columns)) as run:
        assert [draw(run) for _title, _caption, draw in plots.REPORT] == [None] * 4


def test_identical_columns_still_draw(tmp_path: Path) -> None:
    columns = random_columns(np.random.default_rng(3))
    columns["old_logprob"] = columns["rollout_logprob"].copy()
    with opened(write_run(tmp_path, columns)) as run:
        for _title, _caption, draw in plots.REPORT:
            figure = draw(run)
            if figure is not None:
                figure.savefig(io.BytesIO(), format="png", dpi=40)


def test_pyplot_is_never_imported() -> None:
    code = "import sys, timscope.analysis.plots; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
