"""verl's text dump and file-logger metrics come back as they were written, as a run without token rows."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import dump_text
import pytest
from dump_text import Text, texts
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import assert_rows, read, through_a_run

from timscope.data import BadInput
from timscope.data.importers import metrics_jsonl
from timscope.data.importers.base import Findings
from timscope.data.importers.verl_jsonl import FORMAT


def expected(step: int, written: list[Text], v1: bool = True) -> dict[tuple[int, int], dict[str, Any]]:
    return {
        (step, i): {
            "prompt": s.prompt, "completion": s.completion, "reward": s.reward,
            "uid": f"p_{s.group}_0_{i}" if v1 else f"r{i}", "group_id": f"p_{s.group}" if v1 else None,
            "num_tokens": None, "advantage": None,
        }
        for i, s in enumerate(written)
    }  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(st.integers(1, 500), st.lists(texts(), min_size=1, max_size=4), min_size=1, max_size=3),
       st.booleans())  # fmt: skip
def test_what_was_written_comes_back(steps: dict[int, list[Text]], v1: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for step, written in steps.items():
            dump_text.verl(Path(folder), step, written, v1=v1)
        result = read(FORMAT, Path(folder))
    want = {k: row for step, written in steps.items() for k, row in expected(step, written, v1).items()}
    assert_rows(result.sequences(), want)
    assert result.tokens() == {}
    there = sorted(steps)
    assert result.kinds.get("missing-step", 0) == there[-1] - there[0] + 1 - len(there)
    assert set(result.kinds) <= {"missing-step"}


def test_own_numbers_keep_their_names_and_text_stays_out(tmp_path: Path) -> None:
    extra = {"acc": True, "length_penalty": -0.5, "pred": "42", "turns": 3, "nested": {"a": 1}}
    dump_text.verl(tmp_path, 1, [Text("q", "a", 1.0, extra=extra), Text("q", "b", 0.0)], v1=False)
    with through_a_run(tmp_path, tmp_path / "run") as run:
        frame = run.sequences()
        assert frame["acc"].to_list() == [1.0, None] and frame["length_penalty"].to_list() == [-0.5, None]
        assert frame["dump/turns"].to_list() == [3.0, None] and frame["turns"].to_list() == [None, None]
        assert not {"pred", "nested", "gts"} & set(frame.columns) and run.tokens().is_empty()


def _log(path: Path, *entries: tuple[int, dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps({"step": s, "data": d}) + "\n" for s, d in entries))


def test_metrics_of_the_file_logger_fill_the_steps(tmp_path: Path) -> None:
    dump_text.verl(tmp_path, 2, [Text("q", "a", 1.0)])
    _log(
        tmp_path / "experiment.jsonl",
        (1, {"actor/grad_norm": 0.5, "actor/lr": 1e-6, "actor/entropy": 0.25, "timing_s/step": 9.0}),
        (2, {"actor/grad_norm": float("nan"), "critic/rewards/mean": 0.125, "note": "warm"}),
        (2, {"val/acc": 0.75}),
    )
    result = read(FORMAT, tmp_path)
    assert result.kinds == {} and len(result.sequences()) == 1
    first, second = result.table("steps")
    assert (first["grad_norm"], first["learning_rate"], first["entropy"], first["time_s"]) == (0.5, 1e-6, 0.25, 9.0)
    assert (first["actor/grad_norm"], first.get("reward"), first["step"]) == (0.5, None, 1)
    assert second["grad_norm"] != second["grad_norm"] and second["reward"] == 0.125 and second["val/acc"] == 0.75
    assert "note" not in second and second["step"] == 2


def test_metrics_alone_are_a_run_and_a_repeated_step_is_named(tmp_path: Path) -> None:
    file = tmp_path / "experiment.jsonl"
    _log(file, (1, {"actor/lr": 1.0}), (2, {"actor/lr": 1.0, "timing_s/step": 1.0}))
    assert read(metrics_jsonl.FORMAT, file).kinds == {}
    _log(file, (1, {"actor/lr": 1.0}), (2, {"actor/lr": "1.5"}), (2, {"actor/lr": 2.0, "perf": None}))
    result = read(metrics_jsonl.FORMAT, file)
    assert result.kinds == {"metrics-repeated": 1, "numbers-as-strings": 1}
    assert [row["learning_rate"] for row in result.table("steps")] == [1.0, 2.0]
    assert result.evidence("numbers-as-strings")["place"] == "experiment.jsonl:2"


def test_two_metrics_files_are_not_guessed_between(tmp_path: Path) -> None:
    dump_text.verl(tmp_path, 1, [Text("q", "a", 1.0)])
    for name in ("a.jsonl", "b.jsonl"):
        _log(tmp_path / name, (1, {"actor/lr": 1.0}))
    result = read(FORMAT, tmp_path)
    assert result.kinds == {"ambiguous-metrics": 1} and result.table("steps") == []


@pytest.mark.parametrize("fault", ["half-line", "text", "step-differs", "no-output", "empty-file"])
def test_each_fault_is_named_and_the_rest_is_imported(tmp_path: Path, fault: str) -> None:
    paths = [dump_text.verl(tmp_path, step, [Text("q", "a", 1.0), Text("q", "b", 0.5)]) for step in (1, 2)]
    raw = paths[1].read_text()
    change, kind, left = {
        "half-line": (raw[:-20], "truncated-dump", 3),
        "text": (raw.replace('"score": 0.5', '"score": "0.5"'), "numbers-as-strings", 4),
        "step-differs": (raw.replace('"step": 2', '"step": 7', 1), "step-differs", 4),
        "no-output": (raw.replace('"output"', '"outputs"', 1), "integrity", 3),
        "empty-file": ("", None, 2),
    }[fault]
    paths[1].write_text(change)
    result = read(FORMAT, tmp_path)
    assert set(result.kinds) == ({kind} if kind else set()) and len(result.sequences()) == left
    if fault == "text":
        assert result.sequences()[2, 1]["reward"] == 0.5


def test_a_folder_without_a_dump_is_one_line(tmp_path: Path) -> None:
    assert not FORMAT.detect(tmp_path)
    with pytest.raises(BadInput, match="rollout_data_dir"):
        list(FORMAT.read(tmp_path, Findings(), {}))
