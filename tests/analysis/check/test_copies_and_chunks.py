"""What must not change an answer: copies of a rollout, the size of the chunks, and the order of reading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checking import blocked, failed, sound
from inject import offset, shifted
from recorded import Columns, sample, selected

from timscope.analysis.check import reading, run_checks, scan
from timscope.data import open_run


def copied(c: Columns, times: int) -> Columns:
    """Every rollout of the part in so many steps, under one uid."""
    count = int(c.number.max()) + 1
    again = selected(c, np.tile(np.arange(count), times)).with_rows(advantage=None)
    again.steps = times
    return again


@pytest.mark.parametrize("named", [True, False])
def test_copies_are_no_evidence_of_a_bias(tmp_path: Path, named: bool):
    """An id that occurs once, with a large difference, in 60 copies of one rollout: one observation, not 60."""
    c = selected(sample(), np.arange(100))
    ids, counts = np.unique(c["token_id"], return_counts=True)
    once = np.isin(c["token_id"], ids[counts == 1][:3])
    many = copied(offset(c, once, -0.8), 60)
    many = many if named else many.with_rows(uid=None)
    assert "penalties" not in failed(many.check(tmp_path))


def test_a_bias_in_many_contexts_is_found_among_copies(tmp_path: Path):
    c = offset(sample(), sample()["token_id"] == 30, -1.0)
    report = copied(c, 3).check(tmp_path)
    blocked(report, "penalties")
    first = report.rule("penalties").evidence["ids"][0]
    # 421 tokens of the id, 93 of them with log-probs that another one has as well.
    assert (first["token_id"], first["tokens"], first["contexts"]) == (30, 3 * 421, 328)


def test_copies_do_not_sharpen_the_test_of_the_weights(tmp_path: Path):
    c = sample()
    once, thrice = c.check(tmp_path / "a").context["mean_weight"], copied(c, 3).check(tmp_path / "b")
    sound(thrice)
    assert thrice.context["mean_weight"]["z"] == pytest.approx(once["z"], rel=0.01)
    free = copied(c, 3).with_rows(uid=None).check(tmp_path / "c").context["mean_weight"]
    assert free["z"] == pytest.approx(3**0.5 * once["z"], rel=0.01)


def plain(value: Any) -> Any:
    """A report's figures with floats rounded: sums are added up in another order."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize("rows", [10, 100, 2000])
def test_the_size_of_the_chunks_does_not_matter(tmp_path: Path, rows: int, monkeypatch: pytest.MonkeyPatch):
    path = shifted(selected(sample(), np.arange(160)), 1, sequences=np.arange(0, 160, 4)).write(tmp_path)
    with open_run(path) as run:
        whole = plain(run_checks(run).to_json())
        monkeypatch.setattr(scan, "chunks", lambda run, there: reading.chunks(run, there, rows))
        small = plain(run_checks(run).to_json())
    assert small == whole


def test_an_error_while_reading_ahead_reaches_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = sample().write(tmp_path)

    def broken(*_: Any) -> Any:
        raise OSError("the disk is gone")

    with open_run(path) as run:
        monkeypatch.setattr(reading, "_chunk", broken)
        with pytest.raises(OSError, match="the disk is gone"):
            run_checks(run)
