"""verl 0.9.1 as far as the hooks can see it: its batches, made of real tensors, and trainers with its signatures."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from marked import Sample, padded
from tensordict import TensorDict

COLUMNS = {
    "rollout_log_probs": "rollout_logprob",
    "old_log_probs": "old_logprob",
    "ref_log_prob": "ref_logprob",
    "entropy": "entropy",
    "rollout_is_weights": "rollout_is_weight",
}


@dataclass
class KVBatchMeta:
    """What the V1 trainer passes around: names of rows, not the rows."""

    partition_id: str
    keys: list[str]
    tags: list[dict[str, Any]]
    extra_info: dict[str, Any] = field(default_factory=dict)


@dataclass
class DataProto:
    """What the legacy trainer passes around."""

    batch: TensorDict
    non_tensor_batch: dict[str, Any] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)


def jagged(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def on_last(sample: Sample, value: float) -> torch.Tensor:
    scores = torch.zeros(len(sample.response))
    scores[-1] = value
    return scores


class Store:
    """TransferQueue as the driver sees it: asked for fields of keys, it leaves out fields that nobody has put."""

    def __init__(self, batch: list[Sample], without: tuple[str, ...] = ()) -> None:
        self.rows: dict[str, dict[str, torch.Tensor]] = {}
        self.asked: list[list[str]] = []
        for i, sample in enumerate(batch):
            row = {
                "prompts": torch.tensor(sample.prompt),
                "responses": torch.tensor(sample.response),
                "response_mask": torch.tensor(sample.mask),
                "loss_mask": torch.tensor(sample.sampled),
                "rm_scores": on_last(sample, sample.reward),
                "advantages": sample.advantage * torch.tensor(sample.mask, dtype=torch.float32),
                "num_turns": torch.tensor(2 + i),
                **{name: sample.column(column) for name, column in COLUMNS.items()},
            }
            self.rows[key(i)] = {name: value for name, value in row.items() if name not in without}

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> TensorDict:
        assert partition_id == "train"
        self.asked.append(list(select_fields))
        there = [name for name in select_fields if all(name in self.rows[k] for k in keys)]
        stacked = {name: [self.rows[k][name] for k in keys] for name in there}
        fields = {n: torch.stack(rows) if rows[0].ndim == 0 else jagged(rows) for n, rows in stacked.items()}
        return TensorDict(fields, batch_size=len(keys))


def key(row: int) -> str:
    """Two samples a prompt; a prompt's uid may hold underscores itself."""
    return f"prompt_{row // 2}_{row % 2}_0"


def meta(batch: list[Sample], versions: list[tuple[int, int]], padding: int = 0) -> KVBatchMeta:
    tags = [{"status": "success", "min_global_steps": a, "max_global_steps": b} for a, b in versions]
    filler = [{**tags[0], "is_padding": True} for _ in range(padding)]
    names = [key(i) for i in range(len(batch))] + [f"pad_{i}_0" for i in range(padding)]
    return KVBatchMeta("train", names, tags + filler)


def proto(batch: list[Sample], versions: list[tuple[int, int]] | None = None) -> DataProto:
    """The final DataProto of a step, without the entropies, which the trainer has popped."""
    p, r = max(len(s.prompt) for s in batch), max(len(s.response) for s in batch) + 2
    tensors = {
        "prompts": padded([s.prompt for s in batch], p, left=True),
        "responses": padded([s.response for s in batch], r),
        "attention_mask": torch.cat(
            [
                padded([[1] * len(s.prompt) for s in batch], p, left=True),
                padded([[1] * len(s.response) for s in batch], r),
            ],
            dim=1,
        ),
        "response_mask": padded([s.mask for s in batch], r),
        "token_level_scores": padded([on_last(s, s.reward) for s in batch], r),
        "token_level_rewards": padded([on_last(s, s.reward) for s in batch], r),
        "advantages": padded([s.advantage * torch.tensor(s.mask, dtype=torch.float32) for s in batch], r),
        **{n: padded([s.column(c) for s in batch], r) for n, c in COLUMNS.items() if n != "entropy"},
    }
    others: dict[str, Any] = {"uid": np.array([f"prompt-{i // 2}" for i in range(len(batch))], dtype=object)}
    if versions:
        others["min_global_steps"] = np.array([a for a, _ in versions], dtype=object)
        others["max_global_steps"] = np.array([b for _, b in versions], dtype=object)
    return DataProto(TensorDict(tensors, batch_size=len(batch)), others)


def config(bypass: bool = False) -> dict[str, Any]:
    """A part of verl's configuration tree."""
    return {
        "actor_rollout_ref": {
            "model": {"path": "/models/Qwen3-0.6B", "tokenizer_path": None},
            "actor": {"strategy": "fsdp", "ppo_epochs": 2, "fsdp_config": {"model_dtype": "fp32", "dtype": "bfloat16"}},
            "rollout": {
                "name": "vllm",
                "temperature": 0.7,
                "top_k": -1,
                "top_p": 1.0,
                "dtype": "bfloat16",
                "logprobs_mode": "processed_logprobs",
                "response_length": 512,
            },
        },
        "algorithm": {"adv_estimator": "grpo", "rollout_correction": {"bypass_mode": bypass}},
        "trainer": {"device": "cuda"},
    }


def v1_module(store: Any) -> ModuleType:
    """Stands for verl.trainer.ppo.v1.trainer_base."""
    module = ModuleType("verl.trainer.ppo.v1.trainer_base")

    class PPOTrainer:
        def __init__(self, bypass: bool = False) -> None:
            self.config, self.tokenizer = config(bypass), None

        def _compute_metrics(self, batch: Any, metrics: Any, timing_raw: Any, global_steps: int, epoch: int) -> None:
            metrics["critic/rewards/mean"] = np.float64(0.5)

        def fit(self, agent_loop_manager: Any) -> str:
            for number, batch in enumerate(agent_loop_manager, start=1):
                metrics = {
                    "actor/grad_norm": 1.25,
                    "actor/loss": torch.tensor(0.5),
                    "dapo/table": {"a": 1},
                    "note": "x",
                }
                self._compute_metrics(batch, metrics, {}, global_steps=number, epoch=0)
            return "done"

    module.PPOTrainer, module.tq = PPOTrainer, store  # type: ignore[attr-defined]
    return module


def v0_modules() -> tuple[ModuleType, ModuleType]:
    """Stand for verl.trainer.ppo.ray_trainer and verl.utils.tracking."""
    trainers, tracking = ModuleType("verl.trainer.ppo.ray_trainer"), ModuleType("verl.utils.tracking")

    class Tracking:
        def log(self, data: Any, step: int, backend: Any = None) -> None:
            pass

    class RayPPOTrainer:
        def __init__(self) -> None:
            self.config, self.tokenizer, self.global_steps = config(), None, 1

        def _compute_old_log_prob(self, batch: Any) -> Any:
            batch.made = {"old_log_probs": batch.later["old_log_probs"], "entropys": batch.later["entropy"]}
            return SimpleNamespace(batch=TensorDict(batch.made, batch_size=len(batch.made["old_log_probs"]))), 0.1

        def _update_actor(self, batch: Any) -> str:
            return "updated"

        def fit(self, steps: list[Any]) -> None:
            logger = Tracking()
            logger.log({"val/score": 1.0}, step=0)
            for scoring, final in steps:
                if scoring is not None:
                    self._compute_old_log_prob(scoring)
                self._update_actor(final)
                logger.log(data={"actor/grad_norm": 2.0, "critic/score/mean": 0.25}, step=self.global_steps)
                self.global_steps += 1

    trainers.RayPPOTrainer, tracking.Tracking = RayPPOTrainer, Tracking  # type: ignore[attr-defined]
    return trainers, tracking
