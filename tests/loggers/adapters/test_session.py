"""The environment's run: options, errors before there is a recorder, and methods that are watched."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from marked import boom

from timscope.data import open_run
from timscope.loggers.adapters.calls import watch
from timscope.loggers.adapters.columns import (
    advantages,
    counted,
    gathered,
    one_version,
    only,
    sampled,
    selected,
    totals,
)
from timscope.loggers.adapters.config import off_if_negative, options, pick, public_name, scalars, standard, vllm_mode
from timscope.loggers.adapters.session import Session


def test_options_reach_the_recorder(asked: Path, fresh: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMSCOPE_OPTIONS", json.dumps({"overflow": "drop", "environment": {"cluster": "a"}}))
    recorder = fresh.open("verl", lambda: {"framework": "verl", "environment": {"python": "3"}}, rank=0, world_size=1)
    assert recorder is not None and fresh.open("verl", boom) is recorder, "one run a process"
    recorder.begin(1).metrics(loss=1.0)
    recorder.complete(1)
    fresh.close()
    with open_run(asked) as run:
        assert run.manifest.environment == {"cluster": "a"} and run.steps()["loss"].to_list() == [1.0]


@pytest.mark.parametrize("text", ["{nonsense", "[1]"])
def test_options_that_are_no_object_record_nothing_and_say_so_once(
    asked: Path, fresh: Session, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    monkeypatch.setenv("TIMSCOPE_OPTIONS", text)
    for _ in range(2):
        fresh.attempt("hook", lambda: fresh.open("verl", dict))
    assert fresh.recorder is None and not asked.exists()
    assert len(caplog.records) == 1 and "TIMSCOPE_OPTIONS" in caplog.text and "JSON object" in caplog.text


def test_strict_raises_what_would_have_been_logged(
    asked: Path, fresh: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIMSCOPE_OPTIONS", '{"strict": true}')
    with pytest.raises(RuntimeError, match="boom"):
        fresh.attempt("hook", lambda: fresh.open("verl", boom))


class Loop:
    """Something with a method to watch."""

    def step(self, batch: list[int], *, number: int = 3) -> int:
        if number < 0:
            raise ValueError("negative")
        return len(batch) + number


def test_a_watched_method_is_the_same_method(fresh: Session) -> None:
    seen: list[Any] = []
    undo = watch(
        Loop,
        "step",
        before=lambda call: seen.append(dict(call)),
        after=lambda call, result: seen.append(result),
        ended=lambda: seen.append("ended"),
    )
    loop = Loop()
    assert loop.step([1, 2]) == 5
    assert seen == [{"self": loop, "batch": [1, 2], "number": 3}, "ended", 5]
    with pytest.raises(ValueError, match="negative"):
        loop.step(batch=[], number=-1)
    assert seen[3:] == [{"self": loop, "batch": [], "number": -1}, "ended"]
    undo()
    assert loop.step([1]) == 4 and len(seen) == 5
    one = Loop()
    watch(one, "step", after=boom)
    assert one.step([1]) == 4 and one.step([1]) == 4, "an error of ours stays here"


def test_a_call_that_the_method_itself_refuses_raises_its_own_error(fresh: Session) -> None:
    watch(loop := Loop(), "step", before=lambda call: None)
    with pytest.raises(TypeError, match="batch"):
        loop.step()  # type: ignore[call-arg]


def test_reading_configurations() -> None:
    tree = {"a": SimpleNamespace(b={"c": 1, "d": None, "e": [1, (2,)]}), "f": SimpleNamespace(value="x")}
    assert pick(tree, "a.b.c") == 1 and pick(tree, "a.b.d", 5) == 5 and pick(tree, "a.x.y") is None
    assert pick(tree, "a.b") == {"c": 1, "d": None, "e": [1, [2]]} and pick(tree, "f") == "x"
    assert options(tree, ("a.b.c", "a.b.d", "a.b.e")) == {"c": 1, "e": [1, [2]]}
    assert [public_name(p) for p in ("/data/models/Q3/", "Qwen/Q3", "./Q3", None)] == ["Q3", "Qwen/Q3", "Q3", None]
    assert [off_if_negative(k) for k in (-1, 0, 20, None)] == [0, 0, 20, None]
    assert vllm_mode("processed_logprobs", 0.7) == {"mode": "processed", "temperature": 0.7}
    assert vllm_mode("raw_logprobs", 0.7) == {"mode": "raw", "temperature": 1.0}


def test_reading_metrics() -> None:
    table = {
        "a": 1,
        "b": np.float32(0.5),
        "c": torch.tensor(2.0),
        "d": "x",
        "e": True,
        "f": [1],
        "g": np.ones(1),
        "h": None,
    }
    assert scalars(table) == {"a": 1.0, "b": 0.5, "c": 2.0}
    assert scalars(None) == {}
    assert standard({"x": 1.0, "y": 2.0}, {"loss": ("z", "y", "x"), "entropy": ("none",)}) == {"loss": 2.0}


def test_rows() -> None:
    block, keep = torch.arange(6).reshape(2, 3), np.array([[False, True, True], [True, False, False]])
    assert [r.tolist() for r in selected(block, keep)] == [[1, 2], [3]]
    assert [r.tolist() for r in gathered([torch.tensor([1.0, 2.0]), torch.zeros(0), torch.tensor([3.0])])] == [
        [1, 2],
        [],
        [3],
    ]
    assert [r.tolist() for r in gathered([[1, 2], [3]])] == [[1, 2], [3]] and gathered([]) == []
    values, mask = [np.array([-1.0, 0.0, 0.0])], [np.array([1, 1, 0])]
    assert sampled(values, mask)[0].tolist() == [-1.0, 0.0, None], "0.0 in the loss is a log-prob"
    with pytest.raises(ValueError, match="row 0 has 3 values for 2 tokens"):
        only(values, [np.array([True, True])])
    assert totals([np.array([0.5, 0.25], np.float32), np.zeros(0)]) == [0.75, 0.0]
    assert counted(["a", "b", "a"]) == ["a_0", "b_0", "a_1"]
    assert one_version([1, 1, None], [1, 2, None]) == ([1, None, None], 1)


def test_advantages_that_vary_or_are_not_finite() -> None:
    masks = [np.array([1, 1, 0]), np.array([0, 0])]
    assert advantages([np.array([2.0, 2.0, 9.0]), np.array([1.0, 3.0])], masks) == [2.0, None]
    varying = advantages([np.array([2.0, 3.0, 9.0]), np.array([1.0, 3.0])], masks)
    assert [row.tolist() for row in varying] == [[2.0, 3.0, None], [None, None]]
    broken = advantages([np.array([np.nan, np.nan, 0.0]), np.array([1.0, 3.0])], masks)
    assert np.isnan(broken[0]) and broken[1] is None, "a NaN advantage is a finding, not missing"
