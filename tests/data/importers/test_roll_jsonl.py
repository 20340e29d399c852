"""ROLL's columns and logging board come back as they were written."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import dump_text
import pytest
from dump_text import Text, texts
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import assert_rows, read, through_a_run
from samples import Sample, recognisable, said, samples

from timscope.data import BadInput
from timscope.data.importers.base import Findings
from timscope.data.importers.roll_jsonl import FORMAT


@settings(max_examples=30, deadline=None)
@given(st.lists(texts(), min_size=1, max_size=5), st.integers(0, 10**6))
def test_columns_come_back(written: list[Text], step: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        result = read(FORMAT, dump_text.roll_columns(Path(folder), step, written))
    assert_rows(
        result.sequences(),
        {
            (step, i): {"prompt": s.prompt, "completion": s.completion, "reward": s.reward, "group_id": str(s.group)}
            for i, s in enumerate(written)
        },
    )
    assert result.tokens() == {} and result.kinds == {}
    sampling = result.facts["sampling"]
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens) == (0.75, 0.5, 50, 9)


def test_agentic_columns(tmp_path: Path) -> None:
    messages = [{"role": r, "content": r[0]} for r in ("system", "user", "assistant", "tool", "assistant")]
    trajectory = {"trajectory_id": "t1", "reward_info": {"episode_reward": 0.5}}
    columns = {
        "messages": [json.dumps(messages)], "trajectory_data": [json.dumps(trajectory)], "tools": ["[]"],
        "exp_name": ["x"], "global_step": [3],
    }  # fmt: skip
    (tmp_path / "rollout_dump_data.step_3.jsonl").write_text(json.dumps(columns) + "\n")
    row = read(FORMAT, tmp_path).sequences()[3, 0]
    assert (row["uid"], row["reward"], row["turns"]) == ("t1", 0.5, 2)
    assert json.loads(row["prompt"]) == messages[:2] and json.loads(row["completion"]) == messages[2:]


@settings(max_examples=40, deadline=None)
@given(st.lists(samples(), min_size=1, max_size=4), st.integers(1, 10**6))
def test_the_board_comes_back(written: list[Sample], step: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        result = read(FORMAT, dump_text.roll_board(Path(folder), step % 1000, written))
    step, want = step % 1000, {}
    for number, sample in enumerate(written):
        length = len(sample.sampled) - sample.sampled[::-1].index(True)
        for i in range(length):
            want[step, number, i] = {
                "token_id": None, "mask": sample.sampled[i], "old_logprob": sample.trainer[i],
                "ref_logprob": sample.trainer[i] - 1.0, "entropy": float(i), "rollout_logprob": None,
            }  # fmt: skip
        assert result.sequences()[step, number]["reward"] == sample.reward
    assert_rows(result.tokens(), want)
    assert result.kinds == {"relative-positions": 1}


def test_board_logprobs_are_beside_the_token_they_score_and_steps_are_joined(tmp_path: Path) -> None:
    for second, (step, first) in enumerate([(2, 10), (1, 50), (2, 90)]):  # two domains of step 2
        dump_text.roll_board(tmp_path, step, [recognisable(0, first_id=first)] * 2, second=second)
    with through_a_run(tmp_path, tmp_path / "run") as run:
        frame = run.tokens()
        assert run.complete_steps == [1, 2] and frame.filter(step=2)["sequence"].unique().to_list() == [0, 1, 2, 3]
        starts = {(1, 0): 50, (1, 1): 50, (2, 0): 10, (2, 1): 10, (2, 2): 90, (2, 3): 90}
        for row in frame.iter_rows(named=True):
            token = starts[row["step"], row["sequence"]] + row["position"]
            assert row["old_logprob"] == pytest.approx(said(token, row["position"]) - 0.5, abs=1e-5)
        assert frame["token_id"].null_count() == frame.height == 30


def test_two_passes_of_the_trainer_give_its_noise_floor(tmp_path: Path) -> None:
    dump_text.roll_board(tmp_path, 1, [recognisable(0, 5)], gap=0.0)
    assert "trainer-not-deterministic" not in read(FORMAT, tmp_path).kinds
    dump_text.roll_board(tmp_path, 2, [recognisable(0, 5)], second=1, gap=0.25)
    evidence = read(FORMAT, tmp_path).evidence("trainer-not-deterministic")
    assert evidence["max_abs"] == pytest.approx(0.25) and evidence["mean_abs"] == pytest.approx(0.125)
    assert (evidence["tokens"], evidence["differing"]) == (10, 5)


@pytest.mark.parametrize("fault", ["half-line", "zero-filled-old", "other-step", "unequal-columns", "missing-step"])
def test_each_fault_is_named_and_the_rest_is_imported(tmp_path: Path, fault: str) -> None:
    if fault in ("unequal-columns", "missing-step"):
        for step in (1, 3) if fault == "missing-step" else (1, 2):
            path = dump_text.roll_columns(tmp_path, step, [Text("q", "a", 1.0), Text("q", "b", 0.5)])
        if fault == "unequal-columns":
            path.write_text(path.read_text().replace('"scores": [1.0, 0.5]', '"scores": [1.0]'))
        kinds, left = {"integrity" if fault == "unequal-columns" else fault}, 2 if fault == "unequal-columns" else 4
    else:
        zero = recognisable(0)
        zero.trainer = [0.0] * 5
        path = dump_text.roll_board(tmp_path, 1, [zero if fault == "zero-filled-old" else recognisable(0)] * 2)
        raw = path.read_text()
        other = raw.replace('"step": 1', '"step": 2', 1)  # the first line decides, so the second one is odd
        path.write_text({"half-line": raw[:-9], "zero-filled-old": raw, "other-step": other}[fault])
        kind = {"half-line": "truncated-dump", "other-step": "integrity"}.get(fault, fault)
        kinds, left = {kind, "relative-positions"}, 2 if fault == "zero-filled-old" else 1
    result = read(FORMAT, tmp_path)
    assert set(result.kinds) == kinds and len(result.sequences()) == left


def test_both_dumps_of_the_same_samples_are_refused(tmp_path: Path) -> None:
    dump_text.roll_columns(tmp_path, 1, [Text("q", "a", 1.0)])
    dump_text.roll_board(tmp_path, 1, [recognisable()])
    with pytest.raises(BadInput, match="move one kind elsewhere"):
        list(FORMAT.read(tmp_path, Findings(), {}))
