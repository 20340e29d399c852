"""Whatever a training script gets wrong, the loop goes on and every step keeps all but the column that was wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from timscope.data import open_run
from timscope.loggers import Recorder

Fault = Callable[[Recorder, Any], None]


def good(step: Any) -> None:
    step.rollout(prompt_ids=[[1, 2], [3]], completion_ids=[[4, 5], [6]], rollout_logprob=[[-1.0, -2.0], [-3.0]])
    step.trainer(old_logprob=[[-1.0, -2.0], [-3.0]])
    step.scores(reward=[1.0, 0.0])
    step.metrics(loss=1.0)


def on_step(method: str, *args: Any, **columns: Any) -> Fault:
    return lambda _recorder, step: getattr(step, method)(*args, **columns)


def on_recorder(method: str, *args: Any, **fields: Any) -> Fault:
    return lambda recorder, _step: getattr(recorder, method)(*args, **fields)


FAULTS: dict[str, tuple[str, Fault]] = {
    "words as rewards": ("reward", on_step("scores", reward=["a", "b"])),
    "nested rewards": ("reward", on_step("scores", reward=[[1.0], [2.0]])),
    "a name as version": ("weight_version", on_step("scores", weight_version="v3")),
    "half a turn": ("turns", on_step("scores", turns=[1.5, 2.0])),
    "words as prompt": ("engine_prompt_ids", on_step("trainer", engine_prompt_ids=[["x"], ["y"]])),
    "rewards as a list": ("rewards", on_step("scores", rewards=[1.0, 2.0])),
    "rewards as an array": ("rewards", on_step("scores", rewards=np.ones(2))),
    "a column nobody can copy": (
        "entropy",
        on_step("trainer", entropy=type("Evil", (), {"__len__": lambda s: 1 / 0})()),
    ),
    "metrics as a list": ("metrics", on_step("metrics", [1, 2])),
    "a metric without a name": ("steps.1", on_step("metrics", {1: 2.0})),
    "a metric that UTF-8 cannot name": ("steps.\ud800", on_step("metrics", {"\ud800": 2.0})),
    "NaN as version": ("steps.weight_version", on_step("metrics", weight_version=float("nan"))),
    "a gradient field of its own": ("gradients.foo", on_step("gradients", {"a": {"norm": 1.0, "foo": 1.0}})),
    "work that fails later": ("later", on_step("later", lambda _step: 1 / 0)),
    "a version in words": ("manifest.weights", on_recorder("add_weights", "v1")),
    "a wrong manifest field": ("manifest.sampling", on_recorder("update_manifest", sampling={"temperature": "hot"})),
    "an object in the manifest": ("manifest.environment", on_recorder("update_manifest", environment={"a": object()})),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_costs_its_column_alone(tmp_path: Path, name: str) -> None:
    column, fault = FAULTS[name]
    with Recorder(tmp_path) as recorder:
        for number in (1, 2, 3):
            with recorder.step(number) as step:
                good(step)
                if number == 2:
                    fault(recorder, step)
        assert recorder.flush() and list(recorder.guard.off) == [column]
    with open_run(tmp_path) as run:
        assert run.complete_steps == [1, 2, 3] and run.tokens().height == 9
        assert not run.tokens()["old_logprob"].is_null().any() and run.steps()["loss"].to_list() == [1.0] * 3
        assert len(run.problems) == 1 and "\n" not in run.problems[0]
        assert run.manifest.recorder.closed


def test_a_manifest_keeps_what_fits(tmp_path: Path) -> None:
    with Recorder(
        tmp_path, framework="mine", sampling={"temperature": "hot"}, trainer={"dtype": "float32"}
    ) as recorder:
        recorder.update_manifest(model="tiny")
    with open_run(tmp_path) as run:
        named = run.manifest.framework, run.manifest.model
        assert [n.name if n else None for n in named] == ["mine", "tiny"]
        assert run.manifest.trainer.dtype == "float32" and run.manifest.sampling.temperature is None


def test_ids_that_are_numbers_and_text_with_surrogates(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder, recorder.step(0) as step:
        step.rollout(prompt_ids=[[1]], completion_ids=[[2]], uid=[7], group_id=np.array([3]), prompt=["\ud800"])
    with open_run(tmp_path) as run:
        assert run.sequences().select("uid", "group_id", "prompt").row(0) == ("7", "3", "\\ud800")


@pytest.mark.parametrize("kind", [np.int64, float, "tensor"])
def test_a_step_number_of_another_type(tmp_path: Path, kind: Any) -> None:
    if kind == "tensor":
        kind = pytest.importorskip("torch").tensor
    with Recorder(tmp_path) as recorder:
        for number in (1, 2):
            with recorder.step(kind(number)) as step:
                good(step)
    with open_run(tmp_path) as run:
        assert run.complete_steps == [1, 2] and not run.problems


@pytest.mark.parametrize("number", ["a", None, -1, 2**31, 1.5, [1], float("nan")])
def test_what_is_no_step_number_is_said_once(tmp_path: Path, number: Any) -> None:
    with Recorder(tmp_path) as recorder:
        for one in (1, number, number, 2):
            with recorder.step(one) as step:
                good(step)
    with open_run(tmp_path) as run:
        assert run.complete_steps == [1, 2] and run.incomplete_steps == []
        assert len(run.problems) == 1 and "step number" in run.problems[0]
    with pytest.raises((TypeError, ValueError)), Recorder(tmp_path, strict=True) as recorder:
        recorder.begin(number)


def test_a_step_that_failed_and_is_done_again_counts_once(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        with pytest.raises(RuntimeError), recorder.step(1) as step:
            good(step)
            raise RuntimeError("out of memory")
        with recorder.step(1) as step:
            good(step)
    with open_run(tmp_path) as run:
        assert run.complete_steps == [1] and run.sequences().height == 2


@pytest.mark.parametrize("option", [{"overflow": "dorp"}, {"queue_size": 0}, {"queue_size": "x"}])
def test_an_option_that_makes_no_sense_costs_nothing(tmp_path: Path, option: dict[str, Any]) -> None:
    """A queue of no places would wait for ever; a misspelt "block" would drop."""
    with Recorder(tmp_path, **option) as recorder, recorder.step(0) as step:
        good(step)
    with open_run(tmp_path) as run:
        assert run.complete_steps == [0] and len(run.problems) == 1 and "is used" in run.problems[0]
    with pytest.raises(ValueError, match="is used"):
        Recorder(tmp_path, strict=True, **option)


def test_a_mask_that_is_off_says_nothing_of_the_loss(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder, recorder.step(0) as step:
        good(step)
        step.trainer(mask=[["yes", "no"], ["no"]])
    with open_run(tmp_path) as run:
        assert run.tokens()["mask"].is_null().all()


def test_token_ids_are_never_cut_to_32_bits(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder, recorder.step(0) as step:
        step.rollout(prompt_ids=[[1]], completion_ids=[[2**32 + 5]])
    with open_run(tmp_path) as run:
        assert run.tokens().height == 0 and "32 bits" in run.problems[0]
