"""Rules 6 and 7: shifts and insertions put into real log-probs; and two faults at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checking import blocked, failed, sound
from inject import H, R, T, inserted, shifted, tempered
from recorded import Columns, sample


@pytest.mark.parametrize("lag", [1, -1, 2])
def test_a_shift_is_found_with_its_lag_and_undone(tmp_path: Path, lag: int):
    report = shifted(sample(), lag).check(tmp_path)
    blocked(report, "off-by-one")
    evidence = report.rule("off-by-one").evidence
    assert evidence["lag"] == lag and evidence["share_shifted"] > 0.98
    assert evidence["mean_abs_at_lag"][lag] < 0.1 < 1.0 < evidence["mean_abs_at_lag"][0]
    assert evidence["mean_abs_after_repair"] == pytest.approx(0.045, abs=0.01)
    assert report.context["undone"] == ["off-by-one"]


def test_the_trainers_shift_has_the_opposite_sign(tmp_path: Path):
    report = shifted(shifted(sample(), 1, T), 1, H).with_tokens(loss_logprob=None).check(tmp_path)
    blocked(report, "off-by-one")
    assert report.rule("off-by-one").evidence["lag"] == -1


def test_rows_out_of_place_are_counted_and_left_out(tmp_path: Path):
    report = shifted(sample(), 1, sequences=np.arange(0, 512, 8)).check(tmp_path)
    blocked(report, "off-by-one")
    evidence = report.rule("off-by-one").evidence
    assert 0.05 < evidence["share_shifted"] < 0.25 and "misaligned" in report.rule("off-by-one").detail
    assert evidence["mean_abs_after_repair"] < 0.06
    assert set(evidence["rows"][0]) == {"step", "sequence", "lag", "gain"}


def test_an_inserted_token_in_every_row(tmp_path: Path):
    report = inserted(sample(), np.arange(512)).check(tmp_path)
    blocked(report, "inserted-token")
    evidence = report.rule("inserted-token").evidence
    assert evidence["share_split"] > 0.8
    assert (evidence["rows"][0]["lag_before"], evidence["rows"][0]["lag_after"]) == (0, 1)
    assert evidence["rows"][0]["gain"] > 10
    assert report.rule("temperature-one-sided").passed is None  # nothing can be said behind it


def test_an_inserted_token_in_some_rows_is_left_out(tmp_path: Path):
    rows = np.arange(0, 512, 5)
    report = inserted(sample(), rows).check(tmp_path)
    blocked(report, "inserted-token")
    named = {row["sequence"] for row in report.rule("inserted-token").evidence["rows"]}
    assert named <= set(rows.tolist())
    assert report.rule("temperature-one-sided").passed is True


def test_a_temperature_behind_a_shift_is_found_too(tmp_path: Path):
    report = shifted(tempered(sample(), 0.8, "rollout"), 1).check(tmp_path)
    blocked(report, "off-by-one", "temperature-one-sided")
    assert report.rule("temperature-one-sided").evidence["T_hat_if_rollout_tempered"] == pytest.approx(0.8, abs=0.03)


def test_one_shifted_row_is_no_finding(tmp_path: Path):
    assert "off-by-one" not in failed(shifted(sample(), 1, sequences=np.array([100])).check(tmp_path))


def masked(lag: int) -> Columns:
    """Every response has a tool call of five tokens, on which the engine said nothing; the mask is shifted."""
    c = sample()
    place = np.arange(len(c.number)) - c.starts[c.number]
    length = np.diff(np.append(c.starts, len(c.number)))[c.number]
    tool = (place >= 3) & (place < 8) & (length >= 12)
    mask = ~np.roll(tool, lag) | (length < 12)
    return c.with_tokens(mask=mask, **{R: np.ma.array(c[R], mask=tool)})


@pytest.mark.parametrize("lag", [1, -1])
def test_a_shifted_loss_mask(tmp_path: Path, lag: int):
    report = masked(lag).check(tmp_path)
    assert "off-by-one" in failed(report) and not report.comparable
    assert report.rule("off-by-one").evidence["mask"]["lag"] == lag


def test_a_loss_mask_in_its_place(tmp_path: Path):
    report = masked(0).check(tmp_path)
    sound(report)
    assert report.rule("off-by-one").evidence["mask"]["sequences"] > 100
