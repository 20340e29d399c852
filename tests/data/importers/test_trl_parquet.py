"""TRL's completion files come back as they were written, a generation that was logged twice only once."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from dump_text import Text, texts
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import assert_rows, read, through_a_run

from timscope.data.importers.overlap import overlap
from timscope.data.importers.trl_parquet import FORMAT


def write(output: Path, step: int, written: list[Text], rewards: dict[str, list[float | None]] | None = None,
          **extra: list[Any]) -> Path:  # fmt: skip
    """completions/completions_{step}.parquet, by the same pandas call that TRL makes."""
    table = {
        "step": [step] * len(written),
        "prompt": [s.extra.get("chat", s.prompt) for s in written],
        "completion": [s.completion for s in written],
        **(rewards or {"right": [s.reward for s in written]}),
        **extra,
        "advantage": [0.5 * s.group for s in written],
    }
    folder = output / "completions"
    folder.mkdir(exist_ok=True)
    pd.DataFrame(table).to_parquet(folder / f"completions_{step:05d}.parquet")
    return folder


def expected(step: int, written: list[Text], first: int = 0) -> dict[tuple[int, int], dict[str, Any]]:
    return {
        (step, i): {
            "prompt": s.prompt, "completion": s.completion, "advantage": 0.5 * s.group,
            "reward": None if s.reward != s.reward else s.reward,  # TRL's NaN (no reward) is a null in the file
            "reward/right": None if s.reward != s.reward else s.reward, "num_tokens": None,
        }
        for i, s in enumerate(written)
        if i >= first
    }  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.integers(1, 99_999), st.lists(texts(), min_size=1, max_size=4), min_size=1, max_size=3))
def test_what_was_written_comes_back(steps: dict[int, list[Text]]) -> None:
    for step, written in steps.items():  # two steps never begin with the same row here
        written[0].completion += f" {step}"
    with tempfile.TemporaryDirectory() as folder:
        for step, written in steps.items():
            write(Path(folder), step, written)
        result = read(FORMAT, Path(folder))
    assert_rows(result.sequences(), {k: v for s, written in steps.items() for k, v in expected(s, written).items()})
    assert result.tokens() == {} and result.kinds == {}


A, B, C, D = (Text("q", name, 1.0, group=i) for i, name in enumerate("abcd"))


def test_a_generation_logged_at_two_steps_is_imported_once(tmp_path: Path) -> None:
    for step, written in {1: [A, B], 2: [A, B], 3: [C, D], 4: [C, D]}.items():
        write(tmp_path, step, written)
    result = read(FORMAT, tmp_path)
    assert_rows(result.sequences(), expected(1, [A, B]) | expected(3, [C, D]))
    assert result.kinds == {"reused-generation": 4}


def test_a_buffer_that_moved_on_by_half(tmp_path: Path) -> None:
    write(tmp_path, 1, [A, B])
    write(tmp_path, 2, [B, C])
    result = read(FORMAT, tmp_path)
    assert_rows(result.sequences(), expected(1, [A, B]) | expected(2, [B, C], first=1))
    assert result.kinds == {"reused-generation": 1}


def test_equal_rows_inside_one_generation_are_all_kept(tmp_path: Path) -> None:
    write(tmp_path, 1, [A, A, A])
    write(tmp_path, 2, [B, A, A])
    result = read(FORMAT, tmp_path)
    assert len(result.sequences()) == 6 and result.kinds == {}


@given(st.lists(st.sampled_from([b"a", b"b"]), max_size=8), st.lists(st.sampled_from([b"a", b"b"]), max_size=8))
def test_overlap_is_the_longest_by_definition(before: list[bytes], after: list[bytes]) -> None:
    longest = max(k for k in range(min(len(before), len(after)) + 1) if before[len(before) - k :] == after[:k])
    assert overlap(before, after) == longest


def _state(folder: Path, *entries: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": list(entries)}))


def test_the_trainers_state_names_the_functions_and_fills_the_steps(tmp_path: Path) -> None:
    rewards: dict[str, list[float | None]] = {"right": [1.0, 0.0], "form": [None, 0.5]}
    write(tmp_path, 1, [A, B], rewards, difficulty=[3, 4], tag=["x", "y"])
    names = [f"rewards/{n}/mean" for n in rewards]
    _state(tmp_path / "checkpoint-2", {"step": 1, "loss": 9.0})
    _state(
        tmp_path / "checkpoint-10",
        {"step": 1, "loss": 0.25, "grad_norm": 1.5, "step_time": 2.0, **dict.fromkeys(names, 0.5)},
        {"step": 2, "loss": 0.5, "note": "x"},
    )
    with through_a_run(tmp_path, tmp_path / "run") as run:
        frame, steps = run.sequences(), run.steps()
        assert frame["reward/right"].to_list() == [1.0, 0.0] and frame["reward/form"].to_list() == [None, 0.5]
        assert frame["reward"].to_list() == [None, None]  # the weights of two functions are not in the dump
        assert frame["difficulty"].to_list() == [3.0, 4.0] and "tag" not in frame.columns
        assert steps["loss"].to_list() == [0.25, 0.5] and steps["time_s"].to_list() == [2.0, None]
        assert steps["grad_norm"].to_list() == [1.5, None] and run.complete_steps == [1, 2]


def test_without_it_a_number_that_may_be_no_reward_keeps_its_own_name(tmp_path: Path) -> None:
    write(tmp_path, 1, [A, B], {"right": [1.0, 0.0]}, difficulty=[3, 4])
    row = read(FORMAT, tmp_path / "completions").sequences()[1, 0]
    assert (row["right"], row["difficulty"], row.get("reward")) == (1.0, 3.0, None) and "reward/right" not in row


def test_chats_are_json(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "héllo"}]
    write(tmp_path, 1, [Text("", "a", 1.0, extra={"chat": chat})])
    assert json.loads(read(FORMAT, tmp_path).sequences()[1, 0]["prompt"]) == chat


@pytest.mark.parametrize("fault", ["cut", "step-differs", "half-state", "none"])
def test_each_fault_is_named_and_the_rest_is_imported(tmp_path: Path, fault: str) -> None:
    for step, written in ((1, [A, B]), (2, [C, D])):
        folder = write(tmp_path, step, written)
    _state(tmp_path, {"step": 1, "loss": 0.5})
    file = folder / "completions_00002.parquet"
    if fault == "cut":
        file.write_bytes(file.read_bytes()[:-50])
    elif fault == "step-differs":
        file.rename(folder / "completions_00003.parquet")
    elif fault == "half-state":
        (tmp_path / "trainer_state.json").write_text('{"log_history": [{"step": 1')
    kinds = {"cut": {"truncated-dump"}, "step-differs": {"step-differs"}, "half-state": {"truncated-dump"}}
    result = read(FORMAT, tmp_path)
    assert set(result.kinds) == kinds.get(fault, set())
    assert len(result.sequences()) == (2 if fault == "cut" else 4)
