"""ROLL's pickled DataProtos: log-probs one column to the left of their token, padding on the right."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
from dump_roll import proto, save, write_roll
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import assert_rows, read
from samples import Sample, recognisable, samples

from timscope.data.errors import BadInput
from timscope.data.importers.base import Findings
from timscope.data.importers.roll_pickle import FORMAT, detect

MANY = st.dictionaries(st.integers(0, 40), st.lists(samples(), min_size=1, max_size=5), min_size=1, max_size=2)


@settings(max_examples=30, deadline=None)
@given(MANY, st.integers(0, 3), st.booleans())
def test_what_goes_in_comes_out(steps: dict[int, list[Sample]], pad: int, consolidate: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        got = read(FORMAT, write_roll(Path(folder), steps, pad=pad, consolidate=consolidate))
        tokens, sequences = got.tokens(), got.sequences()
    want_tokens, want_rows = {}, {}
    for step, rows in steps.items():
        total = max(len(s.ids) for s in rows) + pad
        for index, sample in enumerate(rows):
            for i, token in enumerate(sample.response):
                # The very first token of a sequence has no column of its own.
                scored = sample.sampled[i] and len(sample.prompt) + i > 0
                want_tokens[step, index, len(sample.prompt) + i] = {
                    "token_id": token,
                    "mask": sample.sampled[i],
                    "rollout_logprob": sample.rollout[i] if scored else None,
                }
            want_rows[step, index] = {
                "pad_left": 0,
                "pad_right": total - len(sample.ids),
                "reward": sample.reward,
            }
            assert sequences[step, index]["prompt_ids"].tolist() == sample.prompt
    assert_rows(tokens, want_tokens)
    assert_rows(sequences, want_rows)


def test_sampling_parameters_are_kept(tmp_path: Path) -> None:
    got = read(FORMAT, write_roll(tmp_path, {1: [recognisable()]}))
    said = got.facts["sampling"]
    assert (said.temperature, said.top_p, said.top_k, said.max_tokens) == (0.8, 0.9, 50, 64)


def test_without_logprobs(tmp_path: Path) -> None:
    got = read(FORMAT, write_roll(tmp_path, {1: [recognisable()]}, logprobs=False))
    assert [row["rollout_logprob"] for row in got.tokens().values()] == [None] * 5


def test_validation_is_left_out(tmp_path: Path) -> None:
    write_roll(tmp_path, {1: [recognisable()], 2: [recognisable()]}, mode="val")
    got = read(FORMAT, write_roll(tmp_path, {3: [recognisable()]}))
    assert {part.step for part in got.parts} == {3}
    assert got.kinds["not-imported"] == 2


def test_other_width_is_refused(tmp_path: Path) -> None:
    one = proto([recognisable()])
    one.batch["infer_logprobs"] = torch.zeros(1, one.batch["input_ids"].shape[1])
    save(one, tmp_path / "step_000001.pkl")
    with pytest.raises(BadInput, match="another version of ROLL"):
        list(FORMAT.read(tmp_path, Findings(), {}))


def test_cut_file_is_left_out(tmp_path: Path) -> None:
    write_roll(tmp_path, {1: [recognisable()], 2: [recognisable()]})
    cut = tmp_path / "train" / "step_000002.pkl"
    cut.write_bytes(cut.read_bytes()[:-40])
    got = read(FORMAT, tmp_path)
    assert {part.step for part in got.parts} == {1} and got.kinds["truncated-dump"] == 1


def test_detect(tmp_path: Path) -> None:
    write_roll(tmp_path, {1: [recognisable()]})
    assert detect(tmp_path) and detect(tmp_path / "train") and detect(tmp_path / "train" / "step_000001.pkl")
    assert not detect(tmp_path / "val")
