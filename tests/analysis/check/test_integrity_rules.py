"""Rule 1: each way in which a log can be broken or incomplete, with its first rows; and what only looks like one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checking import blocked, failed, sound, warned
from inject import R, T, constant, place
from recorded import Columns, resampled, sample

from timscope.analysis.check import run_checks
from timscope.data import Manifest, RunWriter, open_run, parts
from timscope.data.manifest import Imported, ImportFinding

SPOT = 1000  # inside a sequence, in step 0


def moved(c: Columns, by: int, rows: Any = SPOT) -> Columns:
    """Positions of some tokens moved."""
    position = c["position"].copy()
    position[rows] += by
    return c.with_tokens(position=position)


def without(c: Columns, column: str, rows: Any) -> Columns:
    """NULL in some rows of a column."""
    hidden = np.zeros(len(c.number), bool)
    hidden[rows] = True
    return c.with_tokens(**{column: np.ma.array(c[column], mask=hidden)})


def ids(c: Columns, value: int) -> Columns:
    token = c["token_id"].copy()
    token[SPOT] = value
    return c.with_tokens(token_id=token)


def lengths(c: Columns, change: int) -> Columns:
    """The table of sequences says another length of one of them."""
    told = list(c.rows["num_tokens"])
    told[5] += change
    return c.with_rows(num_tokens=told)


def no_tokens(c: Columns, number: int) -> Columns:
    """The tokens of one sequence are gone, its row is there."""
    keep = c.number != number
    return Columns({k: v[keep] for k, v in c.tokens.items()}, c.number[keep], c.rows, c.manifest)


def inside(c: Columns) -> int:
    """A token after some others of a long sequence."""
    length = np.bincount(c.number)[c.number]
    return int(np.flatnonzero((length > 30) & (place(c) == 12))[0])


CASES = {
    "gap": lambda c: moved(c, 1000, np.arange(len(c.number)) == inside(c)),
    "duplicate": lambda c: moved(c, -1, inside(c)),
    "not_after_prompt": lambda c: moved(c, 3, c.number == 7),
    "negative_id": lambda c: ids(c, -5),
    "id_beyond_vocabulary": lambda c: ids(c, 49_152),
    "logprob_without_token": lambda c: without(c, "token_id", [SPOT]),
    "shorter:rollout_logprob": lambda c: without(c, R, [inside(c)]),
    "shorter:old_logprob": lambda c: without(c, T, [inside(c)]),
    "positive:rollout_logprob": lambda c: constant(c, 0.01, [SPOT]),
    "positive:old_logprob": lambda c: constant(c, 0.5, [SPOT], T),
    "length": lambda c: lengths(c, 2),
    "without_row": lambda c: no_tokens(c, 9),
}


@pytest.mark.parametrize("name", CASES)
def test_each_violation_blocks_and_shows_its_place(tmp_path: Path, name: str):
    report = CASES[name](sample()).check(tmp_path)
    blocked(report, "integrity")
    found = report.rule("integrity").evidence["violations"]
    assert found[name]["count"] >= 1, found
    row = found[name]["rows"][0]
    assert {"step", "sequence"} <= set(row)
    if name.startswith("shorter"):
        assert (row["position"], row[name.partition(":")[2]]) == (int(sample()["position"][inside(sample())]), None)


def test_positions_that_go_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """timscope's writer sorts, another one need not."""
    monkeypatch.setattr(parts, "_sorted", lambda table: table)
    c = sample()
    first = inside(c)
    report = c.with_tokens(position=swapped(c["position"], first)).check(tmp_path)
    assert "integrity" in failed(report) and not report.comparable
    assert report.rule("integrity").evidence["violations"]["out_of_order"]["count"] == 1


def swapped(x: np.ndarray, i: int) -> np.ndarray:
    out = x.copy()
    out[[i, i + 1]] = out[[i + 1, i]]
    return out


def test_a_sequence_that_comes_twice(tmp_path: Path):
    c = sample()
    again = c.number == 7
    tokens = {k: np.concatenate([v, v[again]]) for k, v in c.tokens.items()}
    twice = Columns(tokens, np.append(c.number, c.number[again]), c.rows, c.manifest)
    report = twice.check(tmp_path)
    assert "integrity" in failed(report) and not report.comparable
    # The writer sorts the two copies into one another.
    assert report.rule("integrity").evidence["violations"]["duplicate"]["count"] == int(again.sum())


def test_two_rows_of_one_sequence(tmp_path: Path):
    c = sample()
    with RunWriter(tmp_path, Manifest(**c.manifest), strict=True) as writer:
        use = c.number < 100
        writer.put("tokens", 0, {"sequence": c.number[use], **{k: v[use] for k, v in c.tokens.items()}})
        rows = {"sequence": [*range(100), 3], "num_tokens": [*c.rows["num_tokens"][:100], c.rows["num_tokens"][3]]}
        prompts = [*c.rows["prompt_ids"][:100], c.rows["prompt_ids"][3]]
        writer.put("sequences", 0, {**rows, "prompt_ids": prompts})
        writer.complete(0)
    with open_run(tmp_path) as run:
        report = run_checks(run)
    blocked(report, "integrity")
    assert report.rule("integrity").evidence["violations"]["repeated_sequence"]["rows"][0]["sequence"] == 3


@pytest.mark.parametrize(("value", "told"), [(1e-7, False), (5e-4, True)])
def test_a_log_prob_a_little_above_zero_is_float_noise(tmp_path: Path, value: float, told: bool):
    c = sample()
    sure = int(np.flatnonzero(c[T] > -1e-3)[0])
    report = constant(c, value, [sure]).check(tmp_path)
    sound(report)
    assert bool(report.rule("integrity").evidence["notes"]) is told


def test_the_first_token_of_a_turn_may_have_no_log_prob(tmp_path: Path):
    c = sample()
    mask = c["mask"].copy()
    i = inside(c)
    mask[i - 1] = False  # a token of the environment, then a new turn
    report = without(c.with_tokens(mask=mask), R, [i - 1, i]).check(tmp_path)
    sound(report)
    assert report.rule("integrity").evidence["notes"]["turn_start:rollout_logprob"]["count"] == 1


def test_without_a_vocabulary_ids_are_not_judged(tmp_path: Path):
    c = ids(sample(), 900_000)
    c.manifest = {k: v for k, v in c.manifest.items() if k not in ("model", "tokenizer")}
    report = c.check(tmp_path)
    sound(report)
    assert "vocabulary unknown" in report.rule("integrity").detail


def test_a_column_of_some_sequences_alone_is_no_shorter_column(tmp_path: Path):
    c = sample()
    sound(without(c, R, c.number % 3 == 0).check(tmp_path))


def test_parts_that_the_recorder_dropped_only_warn(tmp_path: Path):
    resampled(np.random.default_rng(0), 800).write(tmp_path)
    state = tmp_path / "recorder" / "rank=0.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "drops": 4}))
    with open_run(tmp_path) as run:
        report = run_checks(run)
    warned(report, "integrity")
    assert report.rule("integrity").evidence["violations"]["drops"] == {"count": 4}


def test_rows_that_an_importer_left_out_only_warn(tmp_path: Path):
    finding = ImportFinding(kind="integrity", detail="rows of unequal length are left out", count=3)
    told = Imported(format="x", source="y", tier="T3", findings=[finding])
    report = resampled(np.random.default_rng(0), 800).declaring(imported=told).check(tmp_path)
    warned(report, "integrity")
    assert report.rule("integrity").evidence["violations"]["imported"]["findings"][0]["count"] == 3
