"""SkyRL's dumped batches: everything is right-aligned, and the rows that fill a batch are no data."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from dump_skyrl import batch, save, write_skyrl
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import assert_rows, read
from samples import Sample, flat_advantage, recognisable, samples

from timscope.data.errors import BadInput
from timscope.data.importers.base import Findings
from timscope.data.importers.skyrl import FORMAT, detect

MANY = st.dictionaries(st.integers(1, 40), st.lists(samples(), min_size=1, max_size=5), min_size=1, max_size=2)


@settings(max_examples=40, deadline=None)
@given(MANY, st.integers(0, 3))
def test_what_goes_in_comes_out(steps: dict[int, list[Sample]], pad_size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        got = read(FORMAT, write_skyrl(Path(folder), steps, pad_size))
        tokens, sequences = got.tokens(), got.sequences()
    want_tokens, want_rows = {}, {}
    for step, rows in steps.items():
        total, half = max(len(s.ids) for s in rows), (len(rows) + 1) // 2
        for index, sample in enumerate(rows):
            flat = flat_advantage(sample)
            for i, token in enumerate(sample.response):
                in_loss = sample.sampled[i] and sample.in_loss
                want_tokens[step, index, len(sample.prompt) + i] = {
                    "token_id": token,
                    "mask": in_loss,
                    "rollout_logprob": sample.rollout[i] if sample.sampled[i] else None,
                    "old_logprob": sample.trainer[i],
                    "ref_logprob": None,
                    "advantage": None if flat else sample.advantage[i],
                }
            want_rows[step, index] = {
                "pad_left": total - len(sample.ids),
                "pad_right": 0,
                "group_id": str(int(index >= half)),
                "mini_batch": 0.0,
                "advantage": sample.advantage[0] if flat else None,
            }
    assert_rows(tokens, want_tokens)
    assert_rows(sequences, want_rows)
    assert got.kinds.get("padding-rows", 0) == pad_size * len(steps)
    for (step, index), row in sequences.items():
        assert row["prompt_ids"].tolist() == steps[step][index].prompt


def test_bfloat16_columns_are_read_exactly(tmp_path: Path) -> None:
    sample = recognisable()
    got = read(FORMAT, write_skyrl(tmp_path, {1: [sample]}, dtype=torch.bfloat16))
    want = torch.tensor(sample.trainer).bfloat16().float().tolist()
    assert [row["old_logprob"] for row in got.tokens().values()] == want


def test_without_response_mask_the_first_loss_token_begins_the_response(tmp_path: Path) -> None:
    one = batch([recognisable(prompt=3, response=5), recognisable(prompt=1, response=2)], 0)
    del one["response_mask"]
    save(one, tmp_path / "global_step_4_training_input.pkl")
    got = read(FORMAT, tmp_path)
    assert sorted(got.tokens()) == [(4, 0, p) for p in range(3, 8)] + [(4, 1, p) for p in (1, 2)]


def test_filling_rows_that_are_no_copies_are_said(tmp_path: Path) -> None:
    one = batch([recognisable(), recognisable(first_id=50)], 2)
    one["sequences"][-1] += 1
    save(one, tmp_path / "global_step_4_training_input.pkl")
    got = read(FORMAT, tmp_path)
    assert got.kinds["padding-rows"] == 2 and got.kinds["integrity"] == 1


def test_cut_file_is_left_out(tmp_path: Path) -> None:
    write_skyrl(tmp_path, {1: [recognisable()], 2: [recognisable()]})
    cut = tmp_path / "dumped_data" / "global_step_2_training_input.pkl"
    cut.write_bytes(cut.read_bytes()[:-30])
    got = read(FORMAT, tmp_path)
    assert {part.step for part in got.parts} == {1}
    assert got.evidence("truncated-dump")["file"] == cut.name


def test_forged_shape_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "global_step_1_training_input.pkl"
    save(batch([recognisable()], 0), path)
    path.write_bytes(path.read_bytes().replace(b"int64", b"int32", 1))
    findings = Findings()
    with pytest.raises((BadInput, ValueError)):
        list(FORMAT.read(path, findings, {}))


def test_single_file_and_detection(tmp_path: Path) -> None:
    write_skyrl(tmp_path, {7: [recognisable()]})
    file = tmp_path / "dumped_data" / "global_step_7_training_input.pkl"
    assert detect(file) and detect(file.parent) and detect(tmp_path)
    assert not detect(tmp_path / "dumped_data" / "other.pkl")
    assert np.array_equal(list(read(FORMAT, file).tokens()), list(read(FORMAT, tmp_path).tokens()))
