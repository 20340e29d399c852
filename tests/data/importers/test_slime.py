"""slime's dump pair: what goes in comes out, row by row; and what is missing or ambiguous is said."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from dump_slime import micro_batches, write_slime
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import assert_rows, read, same
from samples import Sample, flat_advantage, recognisable, samples

from timscope.data.errors import BadInput
from timscope.data.importers.base import Findings
from timscope.data.importers.slime import FORMAT, detect

MANY = st.dictionaries(st.integers(0, 40), st.lists(samples(), min_size=1, max_size=5), min_size=1, max_size=2)


def expected_tokens(step: int, position: int, sample: Sample, version: int | None) -> dict:
    start, flat = len(sample.prompt), flat_advantage(sample)
    return {
        (step, position, start + i): {
            "token_id": token,
            "mask": sample.sampled[i] and sample.in_loss,
            "rollout_logprob": sample.rollout[i] if sample.sampled[i] else None,
            "old_logprob": sample.trainer[i],
            "advantage": None if flat else sample.advantage[i],
            "weight_version": version,
        }
        for i, token in enumerate(sample.response)
    }


@settings(max_examples=40, deadline=None)
@given(MANY, st.integers(1, 3))
def test_what_goes_in_comes_out(steps: dict[int, list[Sample]], ranks: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        got = read(FORMAT, write_slime(Path(folder), steps, ranks=ranks))
        tokens, sequences = got.tokens(), got.sequences()
    want_tokens, want_rows = {}, {}
    for step, rollouts in steps.items():
        where = micro_batches(len(rollouts), ranks)
        for position, sample in enumerate(rollouts):
            want_tokens |= expected_tokens(step, position, sample, None)
            want_rows[step, position] = {
                "rank": where[position][0],
                "micro_batch": where[position][1],
                "reward": sample.reward,
                "trained_reward": np.float32(sample.reward - 1),
                "advantage": sample.advantage[0] if flat_advantage(sample) else None,
                "weight_version": step,
                "uid": str(position),
                "group_id": str(position // 2),
                "prompt": f"prompt {position}",
                "finish_reason": "stop" if position % 2 else "length",
                "num_tokens": len(sample.response),
            }
    assert_rows(tokens, want_tokens)
    assert_rows(sequences, want_rows)
    for (step, position), row in sequences.items():
        assert row["prompt_ids"].tolist() == steps[step][position].prompt


@settings(max_examples=15, deadline=None)
@given(st.lists(samples(), min_size=1, max_size=4))
def test_rollout_dump_alone(rollouts: list[Sample]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write_slime(Path(folder), {3: rollouts}, train=False)
        got, alone = read(FORMAT, path), read(FORMAT, path / "rollout_data")
        tokens = got.tokens()
        assert alone.tokens().keys() == tokens.keys()
    for position, sample in enumerate(rollouts):
        for key, want in expected_tokens(3, position, sample, None).items():
            assert same(tokens[key]["rollout_logprob"], want["rollout_logprob"])
            assert tokens[key]["old_logprob"] is None
            assert tokens[key]["mask"] == sample.sampled[key[2] - len(sample.prompt)]


def turns() -> Sample:
    """Two turns with a tool result of two tokens between them."""
    sample = recognisable(prompt=2, response=8)
    sample.sampled = [True, True, True, False, False, True, True, True]
    return sample


def test_versions_are_placed_by_turns(tmp_path: Path) -> None:
    got = read(FORMAT, write_slime(tmp_path, {0: [turns()]}, versions={0: ["7", "9"]}, ranks=1))
    versions = [row["weight_version"] for row in got.tokens().values()]
    assert versions == [7, 7, 7, None, None, 9, 9, 9]
    assert got.kinds["weight-versions-placed"] == 1 and "mixed-versions" not in got.kinds
    assert got.sequences()[0, 0]["weight_version"] is None


@pytest.mark.parametrize("segments", [["7", "8", "9"], ["7", "7", "8", "9"]])
def test_versions_without_boundaries_are_a_finding(tmp_path: Path, segments: list[str]) -> None:
    got = read(FORMAT, write_slime(tmp_path, {0: [turns()]}, versions={0: segments}, ranks=1))
    row = got.sequences()[0, 0]
    assert row["weight_version"] is None
    assert (row["weight_version_min"], row["weight_version_max"]) == (7.0, 9.0)
    assert all(t["weight_version"] is None for t in got.tokens().values())
    assert got.kinds["mixed-versions"] == 1


def test_versions_that_are_no_numbers(tmp_path: Path) -> None:
    got = read(FORMAT, write_slime(tmp_path, {0: [turns()]}, versions={0: ["default"]}, ranks=1))
    assert got.sequences()[0, 0]["weight_version"] is None
    assert got.kinds["weight-version"] == 1


def test_missing_rank_and_its_rollouts(tmp_path: Path) -> None:
    rollouts = [recognisable(first_id=10 * i + 10) for i in range(6)]
    got = read(FORMAT, write_slime(tmp_path, {0: rollouts}, ranks=3, drop_ranks=frozenset({1})))
    assert got.evidence("missing-rank") == {"step": 0, "missing": [1], "ranks": [0, 2]}
    assert got.kinds["untrained-rollouts"] == 2
    lost = [row for (_, sequence, _), row in got.tokens().items() if sequence in (1, 4)]
    assert lost and all(not row["mask"] and row["old_logprob"] is None for row in lost)
    assert all(row["rollout_logprob"] is not None for row in lost if row["token_id"] % 10 != 5)


def test_last_rank_missing_in_one_step(tmp_path: Path) -> None:
    rollouts = [recognisable() for _ in range(4)]
    write_slime(tmp_path, {0: rollouts}, ranks=2)
    got = read(FORMAT, write_slime(tmp_path, {1: rollouts}, ranks=2, drop_ranks=frozenset({1})))
    assert got.evidence("missing-rank")["missing"] == [1]


def test_truncated_file_is_left_out(tmp_path: Path) -> None:
    write_slime(tmp_path, {0: [recognisable()], 1: [recognisable()]})
    cut = tmp_path / "rollout_data" / "1.pt"
    cut.write_bytes(cut.read_bytes()[:-200])
    got = read(FORMAT, tmp_path)
    assert got.evidence("truncated-dump")["file"] == "1.pt"
    assert {row["step"] for row in got.table("sequences")} == {0, 1}  # the train file still has step 1
    assert all(row["old_logprob"] is not None for row in got.tokens().values())


def test_length_mismatch_is_left_out_with_its_place(tmp_path: Path) -> None:
    write_slime(tmp_path, {0: [recognisable(), recognisable()]})
    train = tmp_path / "train_data" / "0.pt"
    payload = torch.load(train, weights_only=False)
    payload["samples"][1]["log_probs"] = torch.zeros(99)
    torch.save(payload, train)
    got = read(FORMAT, tmp_path)
    evidence = got.evidence("integrity")
    assert (evidence["column"], evidence["length"], evidence["token_ids"]) == ("old_logprob", 99, 5)
    assert evidence["place"] == "0.pt sample 1"
    assert {sequence for _, sequence, _ in got.tokens()} == {0}


def test_numbers_as_text_are_converted_and_said(tmp_path: Path) -> None:
    write_slime(tmp_path, {0: [recognisable()]}, train=False)
    file = tmp_path / "rollout_data" / "0.pt"
    payload = torch.load(file, weights_only=False)
    payload["samples"][0]["rollout_log_probs"] = ["-1.5", -2.5, "-3.5", None, "-4.5"]
    payload["samples"][0]["reward"] = "0.5"
    torch.save(payload, file)
    got = read(FORMAT, tmp_path)
    assert [row["rollout_logprob"] for row in got.tokens().values()] == [-1.5, -2.5, -3.5, None, -4.5]
    assert got.sequences()[0, 0]["reward"] == 0.5 and got.kinds["numbers-as-strings"] == 4


@pytest.mark.parametrize("field, value", [("tokens", None), ("response_length", 99), ("rollout_log_probs", ["a"] * 5)])
def test_an_unusable_sample_is_left_out_alone(tmp_path: Path, field: str, value: object) -> None:
    write_slime(tmp_path, {0: [recognisable(), recognisable()]}, train=False)
    file = tmp_path / "rollout_data" / "0.pt"
    payload = torch.load(file, weights_only=False)
    payload["samples"][0][field] = value
    torch.save(payload, file)
    got = read(FORMAT, tmp_path)
    assert list(got.sequences()) == [(0, 1)]
    assert got.evidence("integrity")["place"] == "0.pt sample 0" and got.kinds["integrity"] == 1


def test_user_objects_are_not_read_and_said(tmp_path: Path) -> None:
    got = read(FORMAT, write_slime(tmp_path, {0: [recognisable()]}))
    assert got.evidence("unread-objects")["classes"] == [f"{write_slime.__module__}.UserObject"]


def test_older_train_dump_is_refused_with_a_remedy(tmp_path: Path) -> None:
    write_slime(tmp_path, {0: [recognisable()]})
    torch.save({"rollout_id": 0, "rank": 0, "rollout_data": {}}, tmp_path / "train_data" / "0.pt")
    with pytest.raises(BadInput, match=r"format_version 2.*rollout_data alone"):
        list(FORMAT.read(tmp_path, Findings(), {}))


def test_eval_and_gaps(tmp_path: Path) -> None:
    write_slime(tmp_path, {s: [recognisable()] for s in (0, 1, 3)})
    (tmp_path / "rollout_data" / "0.pt").rename(tmp_path / "rollout_data" / "eval_0.pt")
    got = read(FORMAT, tmp_path)
    assert got.kinds["not-imported"] == 1
    assert got.evidence("missing-file") == {"step": 0}
    assert got.kinds["missing-step"] == 1


def test_detect(tmp_path: Path) -> None:
    assert not detect(tmp_path) and not detect(tmp_path / "nowhere")
    (tmp_path / "rollout_data").mkdir()
    (tmp_path / "rollout_data" / "notes.txt").write_text("x")
    assert not detect(tmp_path)
