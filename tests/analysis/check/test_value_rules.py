"""Rules 2 to 4: non-finite values, placeholders, storage types, in real log-probs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from checking import blocked, failed, sound, warned
from inject import R, T, constant, rounded
from recorded import resampled, sample

from timscope.data.manifest import LogprobMode, Sampling


def last_tokens(c):
    return np.append(c.starts[1:], len(c.number)) - 1


@pytest.mark.parametrize(("column", "value", "kind"), [(R, np.nan, "nan"), (R, -np.inf, "-inf"), (T, np.inf, "inf")])
def test_non_finite_values_are_kept_apart_and_located(tmp_path: Path, column: str, value: float, kind: str):
    report = constant(sample(), value, [5, 100], column).check(tmp_path)
    blocked(report, "non-finite")
    evidence = report.rule("non-finite").evidence
    assert evidence["counts"] == {f"{column}:{kind}": 2}
    assert [row["position"] for row in evidence["rows"]] == [int(sample()["position"][i]) for i in (5, 100)]
    assert math.isfinite(report.context["mean_abs"]) and report.context["tokens"] == 9216


def test_minus_infinity_of_the_trainer_is_the_edge_of_a_truncated_support(tmp_path: Path):
    c = constant(sample(), -np.inf, [5, 100], T).declaring(sampling=Sampling(temperature=1.0, top_p=0.9))
    report = c.check(tmp_path)
    sound(report)
    assert report.rule("non-finite").evidence["support_boundary"] == {T: 2}


def test_infinities_outside_the_loss_do_not_matter_and_make_no_nan(tmp_path: Path):
    c = sample()
    mask = c["mask"].copy()
    mask[[5, 100]] = False
    report = constant(c.with_tokens(mask=mask), np.inf, [5, 100]).check(tmp_path)
    sound(report)
    assert report.rule("non-finite").evidence["outside_loss"] == {f"{R}:inf": 2}
    assert math.isfinite(report.context["mean_abs"])


def test_missing_is_not_non_finite(tmp_path: Path):
    c = sample()
    hidden = np.zeros(len(c.number), bool)
    hidden[c.starts] = True  # one a turn, at its first token: engines do that
    report = c.with_tokens(**{R: np.ma.array(c[R], mask=hidden)}).check(tmp_path)
    sound(report)
    assert report.rule("non-finite").evidence["missing"] == {R: 512}
    assert report.context["tokens"] == 9218 - 512


def test_an_end_token_with_a_filled_zero(tmp_path: Path):
    # SkyRL#2148: r = 0.0 where t = log 0.01: the true ratio is 1, the naive one 0.01.
    c = sample()
    row = last_tokens(c)[3:4]
    c = constant(constant(c, 0.0, row), math.log(0.01), row, T)
    report = c.check(tmp_path)
    blocked(report, "placeholder")
    found = report.rule("placeholder").evidence["found"]
    assert found == [{"column": R, "value": 0.0, "place": "last token", "tokens": 1}]


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, -100.0, -9999.0, -1e9, -math.log(49152)])
def test_every_known_sentinel(tmp_path: Path, value: float):
    rows = np.random.default_rng(0).random(9218) < 0.02
    report = constant(sample(), value, rows).check(tmp_path)
    blocked(report, "placeholder")
    found = report.rule("placeholder").evidence["found"]
    assert {entry["column"] for entry in found} == {R} and all(
        entry["value"] == pytest.approx(value) for entry in found
    )
    # A constant is told from a value only where the other side disagrees, and never loses the rest of the run.
    assert report.context["mean_abs"] == pytest.approx(0.045, abs=0.005)


def test_zeros_of_the_trainer(tmp_path: Path):
    rows = np.random.default_rng(0).random(9218) < 0.05
    report = constant(sample(), 0.0, rows, T).check(tmp_path)
    blocked(report, "placeholder")
    assert report.rule("placeholder").evidence["found"][0]["column"] == T


def test_a_tail_of_zeros_is_told_as_one(tmp_path: Path):
    c = sample()
    place = np.arange(len(c.number)) - c.starts[c.number]
    length = np.diff(np.append(c.starts, len(c.number)))[c.number]
    report = constant(c, -100.0, (length == 64) & (place >= 60)).check(tmp_path)
    blocked(report, "placeholder")
    assert {e["place"] for e in report.rule("placeholder").evidence["found"]} == {"tail"}


def test_a_sentinel_outside_the_loss_only_warns(tmp_path: Path):
    # Flash-RL#19: log-prob 1.0 on masked tokens; a ratio over them would be e^-1.
    c = sample()
    rows = np.random.default_rng(0).random(9218) < 0.05
    report = constant(c, 1.0, rows).with_tokens(mask=c["mask"] & ~rows).check(tmp_path)
    warned(report, "placeholder")
    assert report.rule("placeholder").evidence["found"][0]["place"] == "outside the loss"


def test_a_nucleus_of_one_token_is_no_placeholder(tmp_path: Path):
    c = sample()
    sure = c[T] > math.log(0.9)
    declared = c.declaring(sampling=Sampling(temperature=1.0, top_p=0.9), logprobs={R: LogprobMode(mode="processed")})
    assert "placeholder" not in failed(constant(declared, 0.0, sure).check(tmp_path / "declared"))
    # The same zeros with no truncation at all cannot be.
    assert "placeholder" in failed(constant(c, 0.0, sure).check(tmp_path / "full"))


@pytest.mark.parametrize(("how", "floor"), [("bf16", 3.3e-3), ("fp16", 4.2e-4), ("3", 5e-4), ("4", 5e-5)])
def test_narrow_storage_warns_with_its_floor(tmp_path: Path, how: str, floor: float):
    report = rounded(sample(), how).check(tmp_path)
    warned(report, "storage-dtype")
    evidence = report.rule("storage-dtype").evidence[R]
    assert evidence["stored_as"] == (how if how.endswith("16") else f"{how}-decimal")
    assert evidence["rounding_nats"] == pytest.approx(floor, rel=0.05) and evidence["share"] > 0.99
    assert "stored_as" not in report.rule("storage-dtype").evidence[T]


def test_a_mismatch_below_the_rounding_cannot_be_read(tmp_path: Path):
    c = sample()
    close = rounded(c.with_tokens(**{T: c[R].copy(), "loss_logprob": None}), "bf16")
    report = close.check(tmp_path)
    blocked(report, "storage-dtype")


def test_storage_needs_two_hundred_values(tmp_path: Path):
    few = rounded(resampled(np.random.default_rng(1), 150), "bf16").check(tmp_path)
    assert few.rule("storage-dtype").passed is None
