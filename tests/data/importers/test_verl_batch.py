"""verl's tq_batch.pt: real TensorDicts and nested tensors, read without torch."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from dump_verl import payload, save, write_verl
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import assert_rows, read
from samples import Sample, recognisable, samples

from timscope.data.errors import BadInput
from timscope.data.importers.base import Findings
from timscope.data.importers.verl_batch import FORMAT, detect

MINIS = st.lists(st.lists(samples(), min_size=1, max_size=4), min_size=1, max_size=2)


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.integers(1, 12), MINIS, min_size=1, max_size=2))
def test_what_goes_in_comes_out(steps: dict[int, list[list[Sample]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        got = read(FORMAT, write_verl(Path(folder), steps))
        tokens, sequences = got.tokens(), got.sequences()
    want_tokens, want_rows = {}, {}
    for step, minis in steps.items():
        everyone = [(i, s) for mini in minis for i, s in enumerate(mini)]
        for number, (index, sample) in enumerate(everyone):
            for i, token in enumerate(sample.response):
                want_tokens[step, number, len(sample.prompt) + i] = {
                    "token_id": token,
                    "mask": sample.sampled[i],
                    "rollout_logprob": sample.rollout[i] if sample.sampled[i] else None,
                    "old_logprob": None,
                }
            want_rows[step, number] = {
                "uid": f"uid{index // 2}-x_{index % 2}_0",
                "group_id": f"uid{index // 2}-x",
                "weight_version": step - 1,
                "turns": 2 + index,
                "reward": sample.reward,
            }
            assert sequences[step, number]["prompt_ids"].tolist() == sample.prompt
    assert_rows(tokens, want_tokens)
    assert_rows(sequences, want_rows)


def test_spanning_versions_have_no_boundaries(tmp_path: Path) -> None:
    save(payload([recognisable(), recognisable()], 5, [(3, 4), (4, 4)]), tmp_path)
    got = read(FORMAT, tmp_path)
    rows = got.sequences()
    assert rows[5, 0]["weight_version"] is None and rows[5, 1]["weight_version"] == 4
    assert (rows[5, 0]["weight_version_min"], rows[5, 0]["weight_version_max"]) == (3.0, 4.0)
    assert got.kinds["mixed-versions"] == 1


def test_padding_trajectories_are_left_out(tmp_path: Path) -> None:
    one = payload([recognisable(), recognisable(first_id=90)], 5)
    one["tags"][1]["is_padding"] = True
    save(one, tmp_path)
    got = read(FORMAT, tmp_path)
    assert list(got.sequences()) == [(5, 0)] and got.kinds["padding-rows"] == 1


def test_dense_columns_are_read_too(tmp_path: Path) -> None:
    """Where all rows have one length a column may be a plain (B, R) tensor, or a consolidated TensorDict."""
    one = payload([recognisable(), recognisable(first_id=90)], 5)
    fields = one["tensordict"]
    dense = torch.tensor([recognisable().rollout, recognisable(first_id=90).rollout])
    fields["rollout_log_probs"] = dense
    one["tensordict"] = fields.exclude("extra_fields", "num_turns").consolidate()
    save(one, tmp_path)
    got = read(FORMAT, tmp_path)
    assert np.array_equal([r["rollout_logprob"] for r in got.tokens().values()], dense.flatten().tolist())


def test_meta_that_counts_otherwise(tmp_path: Path) -> None:
    file = save(payload([recognisable()], 5), tmp_path)
    (file.parent / "meta.json").write_text('{"global_steps": 5, "num_trajectories": 8}')
    got = read(FORMAT, tmp_path)
    assert got.evidence("integrity")["meta"] == 8


def test_several_jobs_are_refused(tmp_path: Path) -> None:
    save(payload([recognisable()], 5), tmp_path / "a")
    save(payload([recognisable()], 5), tmp_path / "b")
    assert not detect(tmp_path)  # five folders down
    with pytest.raises(BadInput, match="holds no tq_batch"):
        list(FORMAT.read(tmp_path, Findings(), {}))
    (tmp_path / "a" / "exp_project").rename(tmp_path / "exp1")
    (tmp_path / "b" / "exp_project").rename(tmp_path / "exp2")
    with pytest.raises(BadInput, match="several jobs"):
        list(FORMAT.read(tmp_path, Findings(), {}))


def test_every_level_is_detected(tmp_path: Path) -> None:
    place = save(payload([recognisable()], 5), tmp_path)
    while place != tmp_path.parent:
        assert detect(place), place
        place = place.parent
