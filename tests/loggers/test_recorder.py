"""The framework-free recorder: what goes in comes out, in every layout; what is missing is NULL; errors stay inside."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timscope.data import open_run
from timscope.loggers import NullRecorder, Recorder

torch = pytest.importorskip("torch")

FLOATS = st.floats(-50, 0, width=32) | st.none() | st.sampled_from([float("nan"), float("-inf")])
IDS = st.integers(0, 50_000)


@st.composite
def rows(draw: Any) -> list[dict[str, Any]]:
    def row() -> dict[str, Any]:
        length = draw(st.integers(0, 6))
        return {
            "prompt": draw(st.lists(IDS, min_size=1, max_size=4)),
            "ids": draw(st.lists(IDS, min_size=length, max_size=length)),
            "rollout": draw(st.lists(FLOATS, min_size=length, max_size=length)),
            "old": draw(st.lists(FLOATS, min_size=length, max_size=length)),
            "mask": draw(st.lists(st.booleans(), min_size=length, max_size=length)),
            "advantage": draw(st.floats(-3, 3, width=32)),
            "reward": draw(st.floats(-3, 3, width=32) | st.none()),
        }

    return [row() for _ in range(draw(st.integers(1, 5)))]


def padded(values: list[list[Any]], fill: Any, side: str, dtype: Any) -> np.ndarray:
    width = max(map(len, values))
    pads = [[fill] * (width - len(v)) for v in values]
    filled = [p + v if side == "left" else v + p for p, v in zip(pads, values, strict=True)]
    block = np.array([[np.nan if x is None else x for x in row] for row in filled], dtype).reshape(len(values), width)
    missing = np.array([[x is None for x in row] for row in filled], bool).reshape(len(values), width)
    return np.ma.array(block, mask=missing) if missing.any() else block


def laid_out(data: list[dict[str, Any]], layout: str) -> dict[str, Any]:
    """The same batch as a trainer might hold it."""
    keys = ("prompt", "ids", "rollout", "old", "mask")
    ragged = {k: [r[k] for r in data] for k in keys}
    if layout == "ragged":
        return {**ragged, "prompt_mask": None, "ids_mask": None}
    side = "left" if layout == "numpy-left" else "right"
    real = [[1] * len(r["ids"]) for r in data]
    block: dict[str, Any] = {
        "prompt": padded(ragged["prompt"], 9, "left", np.int64),
        "prompt_mask": padded([[1] * len(r["prompt"]) for r in data], 0, "left", np.int64),
        "ids": padded(ragged["ids"], 9, side, np.int64),
        "ids_mask": padded(real, 0, side, np.int64),
        "rollout": padded(ragged["rollout"], 0.0, side, np.float32),
        "old": padded(ragged["old"], 7.0, side, np.float32),
        "mask": padded(ragged["mask"], False, side, bool),
    }
    return {k: torch.from_numpy(np.asarray(v)) for k, v in block.items()} if layout == "torch" else block


def same(got: list[Any], said: list[Any], layout: str) -> bool:
    """Equal, where NaN equals NaN; a tensor cannot say None, it says NaN."""
    wanted = [float("nan") if v is None and layout == "torch" else v for v in said]
    return [repr(v) for v in got] == [repr(v) for v in wanted]


@settings(max_examples=25, deadline=None)
@given(data=rows(), layout=st.sampled_from(["ragged", "numpy-right", "numpy-left", "torch"]), seed=st.integers(0, 99))
def test_round_trip(data: list[dict[str, Any]], layout: str, seed: int) -> None:
    """Rollouts in one order, the trainer's columns in another, every layout: the tables say exactly what was said."""
    order = np.random.default_rng(seed).permutation(len(data))
    back = laid_out(data, layout)
    with tempfile.TemporaryDirectory() as folder:
        with Recorder(folder, strict=True, framework="test") as recorder, recorder.step(3) as step:
            said = step.rollout(
                prompt_ids=back["prompt"],
                completion_ids=back["ids"],
                prompt_mask=back["prompt_mask"],
                completion_mask=back["ids_mask"],
                rollout_logprob=back["rollout"],
                weight_version=2,
            )
            assert list(said) == list(range(len(data)))
            permuted = laid_out([data[i] for i in order], layout)
            # A permuted padded block may be narrower on no account: widths are the batch's, as in a trainer.
            step.trainer(rows=order, old_logprob=permuted["old"], mask=permuted["mask"])
            step.scores(
                advantage=np.array([r["advantage"] for r in data]),
                rewards={"f": [r["reward"] for r in data]},
                reward=[r["reward"] for r in data],
            )
            step.metrics(loss=0.5, note="text is not a metric", **{"clip/mean": torch.tensor(0.25)})
        with open_run(folder) as run:
            tokens, sequences, steps = run.tokens(), run.sequences(), run.steps()
    assert tokens["token_id"].to_list() == [i for r in data for i in r["ids"]]
    assert tokens["position"].to_list() == [len(r["prompt"]) + k for r in data for k in range(len(r["ids"]))]
    assert tokens["sequence"].to_list() == [n for n, r in enumerate(data) for _ in r["ids"]]
    for column, key in (("rollout_logprob", "rollout"), ("old_logprob", "old"), ("mask", "mask")):
        assert same(tokens[column].to_list(), [v for r in data for v in r[key]], layout), column
    assert tokens["loss_logprob"].is_null().all()
    assert sequences["prompt_ids"].to_list() == [r["prompt"] for r in data]
    assert sequences["reward/f"].to_list() == sequences["reward"].to_list() == [r["reward"] for r in data]
    assert sequences["advantage"].to_list() == [r["advantage"] for r in data]
    assert sequences["weight_version"].to_list() == [2] * len(data)
    assert steps["loss"].to_list() == [0.5] and steps["clip/mean"].to_list() == [0.25]
    assert steps["resume"].to_list() == [0] and steps["weight_digest"].to_list() == [None]


def one(step: Any, **more: Any) -> range:
    said: range = step.rollout(prompt_ids=[[1, 2]], completion_ids=[[3, 4, 5]], **more)
    return said


def test_values_are_copied_before_returning(tmp_path: Path) -> None:
    values = torch.tensor([[-1.0, -2.0, -3.0]])
    with Recorder(tmp_path, strict=True) as recorder, recorder.step(0) as step:
        one(step, rollout_logprob=values)
        values.zero_()
    with open_run(tmp_path) as run:
        assert run.tokens()["rollout_logprob"].to_list() == [-1.0, -2.0, -3.0]


def test_bfloat16_flat_broadcast_and_per_token_columns(tmp_path: Path) -> None:
    with Recorder(tmp_path, strict=True) as recorder, recorder.step(0) as step:
        one(step, rollout_logprob=torch.tensor([[-1.5, -2.0, -3.0]], dtype=torch.bfloat16), weight_version=[[7, 7, 8]])
        step.trainer(old_logprob=np.array([-1.0, -2.0, -4.0]), rollout_is_weight=torch.tensor([[0.5]]))
        step.scores(advantage=[[0.1, 0.2, 0.3]])
    with open_run(tmp_path) as run:
        tokens = run.tokens()
        assert tokens["rollout_logprob"].to_list() == [-1.5, -2.0, -3.0]
        assert tokens["old_logprob"].to_list() == [-1.0, -2.0, -4.0]
        assert tokens["rollout_is_weight"].to_list() == [0.5] * 3
        assert tokens["weight_version"].to_list() == [7, 7, 8]
        assert tokens["advantage"].to_list() == pytest.approx([0.1, 0.2, 0.3])
        assert run.sequences()["advantage"].to_list() == [None]


def test_gradients_and_ranks(tmp_path: Path) -> None:
    """Every rank writes its rows, rank 0 alone the step's metrics; row numbers never collide."""
    for rank in (0, 1):
        with Recorder(tmp_path, rank=rank, world_size=2, strict=True) as recorder, recorder.step(1) as step:
            one(step)
            one(step)
            step.gradients({"total": {"norm": 2.0, "nonfinite": 0}, "head": torch.tensor(1.5)})
            step.metrics(loss=float(rank))
    with open_run(tmp_path) as run:
        assert run.sequences()["sequence"].to_list() == [0, 1, 2, 3]
        assert sorted(run.sequences()["rank"].to_list()) == [0, 0, 1, 1]
        assert run.steps()["loss"].to_list() == [0.0]
        assert dict(run.sql("SELECT parameter_group, norm FROM gradients").iter_rows()) == {"total": 2.0, "head": 1.5}


def test_a_hook_error_turns_its_column_off_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "timscope"), Recorder(tmp_path) as recorder:
        for number in range(3):
            with recorder.step(number) as step:
                one(step, rollout_logprob=[[-1.0, -2.0, -3.0]])
                step.trainer(old_logprob=[[-1.0, -2.0]], loss_logprob=[[-1.0, -2.0, -3.0]], colour=["red"])
                step.metrics(loss=object(), reward=1.0)
    told = [r.getMessage() for r in caplog.records]
    assert len(told) == 3 and any("'old_logprob' is off" in t and "2 values for 3 tokens" in t for t in told)
    with open_run(tmp_path) as run:
        assert run.complete_steps == [0, 1, 2]
        assert run.tokens()["old_logprob"].is_null().all() and not run.tokens()["loss_logprob"].is_null().any()
        assert run.steps()["reward"].to_list() == [1.0] * 3
        assert any("old_logprob" in e for e in run.manifest.recorder.errors)


def test_strict_raises(tmp_path: Path) -> None:
    with Recorder(tmp_path, strict=True) as recorder:
        step = recorder.begin(0)
        one(step)
        with pytest.raises(ValueError, match="2 values for 3 tokens"):
            step.trainer(old_logprob=[[-1.0, -2.0]])
        with pytest.raises(ValueError, match="rows must lie"):
            step.trainer(rows=[1], old_logprob=[[-1.0, -2.0, -3.0]])


def test_an_unusable_directory_never_reaches_the_loop(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with Recorder(tmp_path / "file" / "run") as recorder, recorder.step(0) as step:
        one(step)
    assert recorder.errors
    with pytest.raises(OSError):
        Recorder(tmp_path / "file" / "run", strict=True)


def test_a_step_that_raises_stays_incomplete(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        with recorder.step(0) as step:
            one(step)
        with pytest.raises(RuntimeError, match="the loop's own"), recorder.step(1) as step:
            one(step)
            raise RuntimeError("the loop's own")
    with open_run(tmp_path) as run:
        assert run.complete_steps == [0] and run.incomplete_steps == [1]


def test_no_path_records_nothing() -> None:
    with Recorder(None) as recorder:
        assert isinstance(recorder, NullRecorder)
        with recorder.step(0) as step:
            assert len(step.rollout(prompt_ids=[[1]], completion_ids="nonsense")) == 0
            step.trainer(old_logprob="nonsense")
            step.metrics(loss=1.0)
        recorder.add_weights(0, "sha256:0")
        assert recorder.errors == []


def test_torch_is_not_imported() -> None:
    import subprocess
    import sys

    code = "import sys, timscope.loggers as l; l.Recorder(None); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
