"""The SkyRL callback against batches and a loop of SkyRL 0.3.0's shape; test_skyrl_real.py has the real ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from marked import Sample, boom, check_tokens, never, padded, samples

from timscope.data import open_run
from timscope.loggers.adapters import skyrl
from timscope.loggers.adapters.session import Session

COLUMNS = {
    "rollout_logprobs": "rollout_logprob",
    "action_log_probs": "old_logprob",
    "base_action_log_probs": "ref_logprob",
}


class Batch(dict):  # type: ignore[type-arg]
    """TrainingInputBatch: a dict of tensors with metadata."""

    metadata: dict[str, Any] | None = None


@dataclass
class CallbackInput:
    """SkyRL's, as far as it is read."""

    global_step: int
    batch: Any = None
    metrics: dict[str, Any] | None = None
    logs: dict[str, Any] | None = None


@dataclass
class Config:
    """A part of SkyRL's configuration, with attributes as its dataclasses have."""

    trainer: Any = field(
        default_factory=lambda: SimpleNamespace(
            strategy="fsdp",
            bf16=True,
            policy=SimpleNamespace(model=SimpleNamespace(path="Qwen/Qwen3-0.6B")),
            algorithm=SimpleNamespace(advantage_estimator="grpo", policy_loss_type="regular", temperature=None),
        )
    )
    generator: Any = field(
        default_factory=lambda: SimpleNamespace(
            inference_engine=SimpleNamespace(backend="vllm", model_dtype="bfloat16", engine_init_kwargs={}),
            sampling_params=SimpleNamespace(temperature=0.8, top_p=1.0, top_k=-1),
        )
    )


class Trainer:
    """A loop with the events and the order of SkyRL's `train`."""

    def __init__(self, callbacks: list[Any], batches: list[Batch], reward: Callable[[Batch], torch.Tensor]) -> None:
        self.cfg, self.tokenizer, self.global_step = Config(), SimpleNamespace(name_or_path="Qwen/Qwen3-0.6B"), 0
        self.callbacks, self.batches, self.reward = callbacks, batches, reward

    def compute_advantages_and_returns(self, data: Batch) -> Batch:
        data["advantages"] = data.pop("_raw_advantages")
        return data

    def fire(self, name: str, **fields: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, name)(self, CallbackInput(self.global_step, **fields), None)

    def train(self) -> str:
        self.fire("on_train_start")
        self.fire("on_log", logs={"eval/score": 1.0})
        for batch in self.batches:
            self.global_step += 1
            batch["rewards"] = self.reward(batch)
            batch = self.compute_advantages_and_returns(batch)
            batch.pop("rewards")
            (batch.metadata or {}).pop("uids")
            batch["advantages"] = batch["advantages"] * 1000  # scaled for the loss
            self.fire("on_step_end", batch=batch, metrics={"grad_norm": 3.0, "final_loss": 0.5})
            self.fire("on_log", logs={"policy/grad_norm": 3.0, "reward/avg_raw_reward": 0.75, "text": "x"})
        self.fire("on_train_end")
        return "done"


def training_input(batch: list[Sample], padding: int = 0, without: tuple[str, ...] = ()) -> Batch:
    """Everything padded on the left; pad rows are copies of row 0 out of the loss."""
    rows = batch + [batch[0]] * padding
    total = max(len(s.prompt) + len(s.response) for s in rows)
    width = max(len(s.response) for s in rows)
    one = [torch.ones(len(s.response)) for s in rows]
    made = Batch(
        sequences=padded([s.prompt + s.response for s in rows], total, left=True),
        attention_mask=padded([[1] * len(s.prompt + s.response) for s in rows], total, left=True),
        response_mask=padded([[1] * len(s.response) for s in rows], width, left=True),
        loss_mask=padded([torch.tensor(s.mask, dtype=torch.float32) for s in rows], width, left=True),
        _raw_advantages=padded([o * s.advantage for o, s in zip(one, rows, strict=True)], width, left=True),
        values=None,
        **{n: padded([s.column(c) for s in rows], width, left=True) for n, c in COLUMNS.items() if n not in without},
        **{n: None for n in without},
    )
    if padding:
        made["loss_mask"][len(batch) :] = 0
    made.metadata = {"uids": [f"u{i // 2}" for i in range(len(rows))], "pad_size": padding}
    return made


def on_last(batch: list[Sample], padding: int) -> Callable[[Batch], torch.Tensor]:
    def reward(data: Batch) -> torch.Tensor:
        rewards = torch.zeros(data["loss_mask"].shape)
        rewards[:, -1] = torch.tensor([s.reward for s in batch + [batch[0]] * padding])
        return rewards

    return reward


def test_rows_land_on_the_tokens_they_score(fresh: Session, tmp_path: Path) -> None:
    batch = samples(4)
    first, second = training_input(batch, padding=2), training_input(batch, padding=2, without=("action_log_probs",))
    callback = skyrl.TimscopeCallback(tmp_path / "run")
    trainer = Trainer([callback], [first, second], on_last(batch, 2))
    assert trainer.train() == "done"
    assert "compute_advantages_and_returns" not in vars(trainer), "the trainer is as it was"
    check_tokens(tmp_path / "run", batch, set(COLUMNS.values()), step=1)
    check_tokens(tmp_path / "run", batch, {"rollout_logprob", "ref_logprob"}, step=2)
    with open_run(tmp_path / "run") as run:
        rows = run.sql("SELECT * FROM sequences WHERE step = 1 ORDER BY sequence")
        assert rows["reward"].to_list() == [s.reward for s in batch]
        assert rows["advantage"].to_list() == [s.advantage for s in batch], "before SkyRL scales them"
        assert rows["group_id"].to_list() == ["000001-u0", "000001-u0", "000001-u1", "000001-u1"]
        assert rows["uid"].n_unique() == 4 and rows["weight_version"].to_list() == [None] * 4
        steps = run.steps()
        assert steps["grad_norm"].to_list() == [3.0, 3.0] and steps["loss"].to_list() == [0.5, 0.5]
        assert steps["reward"].to_list() == [0.75, 0.75] and "eval/score" not in steps.columns
        m = run.manifest
        assert m.recorder.errors == [] and m.framework and m.framework.name == "skyrl"
        assert (m.rollout.name, m.sampling.temperature, m.algorithm.loss_mode) == ("vllm", 0.8, "recompute")
        assert m.logprobs["rollout_logprob"].mode == "raw" and m.logprobs["old_logprob"].temperature == 0.8


def test_the_environment_names_the_run_too(asked: Path, fresh: Session) -> None:
    Trainer([skyrl.TimscopeCallback()], [training_input(samples(2))], on_last(samples(2), 0)).train()
    check_tokens(asked, samples(2), set(COLUMNS.values()), step=1)


def test_an_error_in_the_callback_stays_there(fresh: Session, tmp_path: Path) -> None:
    batch = training_input(samples(2))
    del batch["response_mask"]
    trainer = Trainer([skyrl.TimscopeCallback(tmp_path / "run")], [batch], on_last(samples(2), 0))
    assert trainer.train() == "done"
    with open_run(tmp_path / "run") as run:
        assert run.steps()["grad_norm"].to_list() == [3.0]
        assert any("response_mask" in e for e in run.manifest.recorder.errors)


def test_a_trainer_that_cannot_be_described_is_recorded(fresh: Session, tmp_path: Path) -> None:
    trainer = Trainer([skyrl.TimscopeCallback(tmp_path / "run")], [training_input(samples(2))], on_last(samples(2), 0))
    trainer.tokenizer = property(boom)  # type: ignore[assignment]
    del trainer.tokenizer
    assert trainer.train() == "done"
    check_tokens(tmp_path / "run", samples(2), set(COLUMNS.values()), step=1)
    with open_run(tmp_path / "run") as run:
        assert run.manifest.framework and run.manifest.framework.name == "skyrl"
        assert "tokenizer" in run.manifest.environment["describe_error"]


def test_nothing_happens_unless_a_run_is_asked_for(fresh: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skyrl, "read_rows", never("read_rows"))
    trainer = Trainer([skyrl.TimscopeCallback()], [training_input(samples(2))], on_last(samples(2), 0))
    assert trainer.train() == "done" and fresh.recorder is None


def test_the_module_imports_no_framework_by_itself() -> None:
    assert "skyrl" not in sys.modules or hasattr(sys.modules["skyrl"], "train")
    source = Path(skyrl.__file__).read_text()
    assert "\nimport skyrl" not in source and "\nfrom skyrl" not in source
    with pytest.raises(AttributeError, match="Nope"):
        _ = skyrl.Nope
