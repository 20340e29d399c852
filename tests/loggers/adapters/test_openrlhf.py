"""The OpenRLHF hook against experiences of OpenRLHF 0.11.2's shape; the last test takes OpenRLHF's own classes where it
is installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from marked import Sample, boom, check_tokens, never, padded, samples
from stubs import stubbed

from timscope.data import open_run
from timscope.loggers.adapters import openrlhf
from timscope.loggers.adapters.session import Session

COLUMNS = {
    "rollout_log_probs": "rollout_logprob",
    "action_log_probs": "old_logprob",
    "base_action_log_probs": "ref_logprob",
}


@dataclass
class Experience:
    """OpenRLHF's, as far as it is read: sequences (B, T), everything per token (B, T - 1)."""

    sequences: Any = None
    attention_mask: Any = None
    action_mask: Any = None
    action_log_probs: Any = None
    base_action_log_probs: Any = None
    rollout_log_probs: Any = None
    advantages: Any = None
    rewards: Any = None
    scores: Any = None
    truncated: Any = None
    index: Any = None
    prompts: list[str] = field(default_factory=list)


def arguments(asynchronous: bool = False) -> SimpleNamespace:
    """A part of OpenRLHF's nested argument namespace."""
    return SimpleNamespace(
        actor=SimpleNamespace(model_name_or_path="Qwen/Qwen3-0.6B", policy_loss_type="ppo"),
        algo=SimpleNamespace(advantage=SimpleNamespace(estimator="rloo", is_correction_level="token")),
        rollout=SimpleNamespace(temperature=0.9, top_p=1.0, n_samples_per_prompt=2),
        train=SimpleNamespace(async_enable=asynchronous, max_epochs=1, seed=3),
        ds=SimpleNamespace(param_dtype="bf16"),
        vllm=SimpleNamespace(tensor_parallel_size=2),
    )


def experiences(batch: list[Sample], without: tuple[str, ...] = ()) -> list[Experience]:
    """Two experiences with the rows out of order, as dynamic batching leaves them; padded on the right."""
    return [experience([(i, batch[i]) for i in rows], without) for rows in ([2, 0], [3, 1])]


def experience(rows: list[tuple[int, Sample]], without: tuple[str, ...]) -> Experience:
    total = max(len(s.prompt) + len(s.response) for _, s in rows) + 1

    def shifted(values: list[torch.Tensor], filler: float = 7.0) -> torch.Tensor:
        """Index i belongs to token i + 1; on the prompt there is something, but nothing of use."""
        head = [torch.full((len(s.prompt) - 1,), filler) for _, s in rows]
        return padded([torch.cat([h, v]) for h, v in zip(head, values, strict=True)], total - 1)

    return Experience(
        sequences=padded([s.prompt + s.response for _, s in rows], total),
        attention_mask=padded([[1] * len(s.prompt + s.response) for _, s in rows], total),
        action_mask=shifted([torch.tensor(s.mask, dtype=torch.float32) for _, s in rows], filler=0.0).bool(),
        advantages=shifted([s.advantage * torch.tensor(s.mask) for _, s in rows]),
        rewards=torch.tensor([s.reward for _, s in rows]),
        truncated=torch.tensor([i == 0 for i, _ in rows]),
        index=[i for i, _ in rows],
        prompts=[f"prompt {i}" for i, _ in rows],
        **{name: shifted([s.column(c) for _, s in rows]) for name, c in COLUMNS.items() if name not in without},
    )


def modules(made: Any, args: Any) -> tuple[ModuleType, ModuleType]:
    """Stand for openrlhf.trainer.ppo_trainer and openrlhf.trainer.ppo_utils.experience_maker."""
    trainers, makers = (
        ModuleType("openrlhf.trainer.ppo_trainer"),
        ModuleType("openrlhf.trainer.ppo_utils.experience_maker"),
    )

    class RemoteExperienceMaker:
        def __init__(self) -> None:
            self.args, self.tokenizer = args, None

        def make_experience_batch(self, rollout_samples: Any) -> Any:
            return made

    class BasePPOTrainer:
        def __init__(self) -> None:
            self.experience_maker = makers.RemoteExperienceMaker()

        def train_step(self, rollout_samples: Any, global_step: int) -> tuple[dict[str, Any], int]:
            self.experience_maker.make_experience_batch(rollout_samples)
            status = {
                "policy_loss": 0.5,
                "actor_grad_norm": 2.0,
                "rollout/reward_mean": 0.75,
                "generated_samples": ["a"],
            }
            return status, global_step + 1

    makers.RemoteExperienceMaker, trainers.BasePPOTrainer = RemoteExperienceMaker, BasePPOTrainer  # type: ignore[attr-defined]
    openrlhf.hook_trainer(trainers)
    openrlhf.hook_maker(makers)
    return trainers, makers


def test_rows_land_on_the_tokens_they_score(asked: Path, fresh: Session) -> None:
    batch = samples()
    trainers, _ = modules(experiences(batch), arguments())
    trainer = trainers.BasePPOTrainer()
    status, number = trainer.train_step(["rollouts"], 4)
    assert number == 5 and status["policy_loss"] == 0.5
    fresh.close()
    check_tokens(asked, batch, set(COLUMNS.values()), step=5, from_mask=True)
    with open_run(asked) as run:
        rows = run.sql("SELECT * FROM sequences ORDER BY sequence")
        assert rows["sequence"].to_list() == [0, 1, 2, 3]
        assert rows["group_id"].to_list() == ["000005-00000"] * 2 + ["000005-00001"] * 2
        assert rows["uid"].to_list()[3] == "000005-00003" and rows["prompt"].to_list()[2] == "prompt 2"
        assert rows["reward"].to_list() == [s.reward for s in batch]
        assert rows["advantage"].to_list() == [s.advantage for s in batch]
        assert rows["finish_reason"].to_list() == ["length", "stop", "stop", "stop"]
        assert rows["weight_version"].to_list() == [4] * 4
        step = run.steps().row(0, named=True)
        assert (step["loss"], step["grad_norm"], step["reward"], step["weight_version"]) == (0.5, 2.0, 0.75, 4)
        m = run.manifest
        assert m.recorder.errors == [] and m.framework and m.framework.name == "openrlhf"
        assert (m.trainer.dtype, m.sampling.temperature, m.rollout.options) == (
            "bfloat16",
            0.9,
            {"tensor_parallel_size": 2},
        )
        assert m.logprobs["rollout_logprob"].mode == "processed"


def test_without_correction_and_asynchronous(asked: Path, fresh: Session) -> None:
    batch = samples()
    args = arguments(asynchronous=True)
    args.algo.advantage.is_correction_level = "off"
    trainers, _ = modules(experiences(batch, without=("rollout_log_probs", "base_action_log_probs")), args)
    trainers.BasePPOTrainer().train_step([], 0)
    fresh.close()
    check_tokens(asked, batch, {"old_logprob"}, step=1)
    with open_run(asked) as run:
        assert run.sql("SELECT weight_version AS v FROM sequences")["v"].to_list() == [None] * 4
        assert run.manifest.logprobs["rollout_logprob"].mode is None


def test_a_row_without_an_action_has_no_response(asked: Path, fresh: Session) -> None:
    made = experiences(samples())
    made[0].action_mask[1] = False
    trainers, _ = modules(made, arguments())
    trainers.BasePPOTrainer().train_step([], 0)
    fresh.close()
    with open_run(asked) as run:
        rows = run.sql("SELECT num_tokens, advantage FROM sequences ORDER BY sequence")
        assert rows["num_tokens"].to_list()[0] == 0 and rows["advantage"].to_list()[0] is None
        assert run.manifest.recorder.errors == []


def test_an_error_in_the_hook_stays_there(asked: Path, fresh: Session) -> None:
    trainers, _ = modules(SimpleNamespace(), arguments())
    assert trainers.BasePPOTrainer().train_step([], 0)[1] == 1
    fresh.close()
    with open_run(asked) as run:
        assert run.steps()["grad_norm"].to_list() == [2.0] and len(run.manifest.recorder.errors) == 1


def test_nothing_happens_unless_a_run_is_asked_for(fresh: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openrlhf, "read_rows", never("read_rows"))
    before = list(sys.meta_path)
    openrlhf.install()
    assert sys.meta_path == before
    trainers, _ = modules(experiences(samples()), arguments())
    assert trainers.BasePPOTrainer().train_step([], 0)[1] == 1 and fresh.recorder is None


def test_errors_of_openrlhf_itself_pass_through(asked: Path, fresh: Session) -> None:
    _, makers = modules([], arguments())
    makers.RemoteExperienceMaker.make_experience_batch = boom
    openrlhf.hook_maker(makers)
    with pytest.raises(RuntimeError, match="boom"):
        makers.RemoteExperienceMaker().make_experience_batch([])


@pytest.fixture
def real() -> Iterator[Any]:
    """OpenRLHF's own modules."""
    pytest.importorskip("openrlhf")
    with stubbed("flash_attn", "deepspeed", "vllm", "bitsandbytes"):
        from openrlhf.trainer import ppo_trainer
        from openrlhf.trainer.ppo_utils import experience, experience_maker

        kept = ppo_trainer.BasePPOTrainer.train_step, experience_maker.RemoteExperienceMaker.make_experience_batch
        yield SimpleNamespace(trainers=ppo_trainer, makers=experience_maker, Experience=experience.Experience)
        ppo_trainer.BasePPOTrainer.train_step, experience_maker.RemoteExperienceMaker.make_experience_batch = kept


@pytest.mark.slow
def test_with_openrlhfs_own_trainer_and_experience_maker(
    real: Any, asked: Path, fresh: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real `train_step`, `make_experience_batch` and advantages; the models' forwards are given."""
    batch = samples()
    args = arguments()
    args.train.dynamic_batch_enable = False
    args.rollout.micro_batch_size = 2
    args.algo.advantage.gamma = 1.0
    args.reward = SimpleNamespace(clip_range=(-10, 10), overlong_buffer_len=None, stop_properly_penalty_coef=None)
    args.vllm.enable_sleep = False
    singles = [experience([(i, s)], without=("action_log_probs", "base_action_log_probs")) for i, s in enumerate(batch)]
    rollouts = [
        real.Experience(
            sequences=e.sequences[:, :-1],
            attention_mask=e.attention_mask[:, :-1],
            action_mask=e.action_mask[:, :-1],
            rollout_log_probs=e.rollout_log_probs[:, :-1],
            rewards=e.rewards,
            truncated=e.truncated,
            response_length=torch.tensor([len(batch[i].response)]),
            total_length=e.attention_mask.sum(1).float(),
            prompts=e.prompts,
            labels=[""],
            info={"reward": e.rewards},
        )
        for i, e in enumerate(singles)
    ]

    def forwards(maker: Any, samples_list: Any) -> Any:
        for chunk in samples_list:
            rows = [(i, batch[i]) for i in chunk.index]
            full = experience(rows, ())
            width = chunk.sequences.shape[1] - 1
            chunk.action_log_probs = full.action_log_probs[:, :width]
            chunk.base_action_log_probs = full.base_action_log_probs[:, :width]
            chunk.kl = torch.zeros(len(rows), width)
        return samples_list

    monkeypatch.setattr(real.makers.RemoteExperienceMaker, "make_experience", forwards)
    openrlhf.hook_trainer(real.trainers)
    openrlhf.hook_maker(real.makers)
    maker = object.__new__(real.makers.RemoteExperienceMaker)
    maker.args = args
    maker.strategy, maker.advantage_estimator = SimpleNamespace(args=args), "rloo"
    maker.tokenizer, maker.kl_ctl = (
        SimpleNamespace(pad_token_id=0, name_or_path="Qwen/Qwen3-0.6B"),
        SimpleNamespace(value=0.0),
    )
    trainer = object.__new__(real.trainers.BasePPOTrainer)
    trainer.args, trainer.experience_maker, trainer.critic_model_group = args, maker, None
    trainer.tokenizer = SimpleNamespace(decode=lambda *a, **k: ["text"])
    trainer.actor_model_group, trainer.vllm_engines = MagicMock(), None
    monkeypatch.setattr(real.trainers.ray, "get", lambda refs: refs)
    trainer.ppo_train = lambda number: {"policy_loss": 0.5, "actor_grad_norm": 2.0}
    status, number = trainer.train_step(rollouts, 0)
    assert number == 1 and status["rollout/num_samples"] == 4.0
    fresh.close()
    check_tokens(asked, batch, set(COLUMNS.values()), step=1, from_mask=True)
    with open_run(asked) as run:
        assert run.manifest.recorder.errors == []
        rows = run.sql("SELECT reward, advantage FROM sequences ORDER BY sequence")
        rewards = [s.reward for s in batch]
        assert rows["reward"].to_list() == rewards
        # RLOO of two: the difference to the other one's reward.
        assert rows["advantage"].to_list() == pytest.approx([rewards[i] - rewards[i ^ 1] for i in range(4)])
