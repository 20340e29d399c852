"""The SkyRL callback in the training loop of an installed SkyRL (0.3.0 was used); skipped where there is none.

SkyRL's `RayPPOTrainer.train` itself runs here, from the generator's output to the callbacks, with the workers and the
inference engine replaced by functions.
"""

from __future__ import annotations

import asyncio
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
from marked import Sample, check_tokens, said, samples
from stubs import stubbed

from timscope.data import open_run
from timscope.loggers.adapters import skyrl
from timscope.loggers.adapters.session import Session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """SkyRL's own trainer module."""
    pytest.importorskip("skyrl")
    from typing_extensions import TypedDict

    monkeypatch.setattr(typing, "TypedDict", TypedDict)  # SkyRL gives pydantic the other one, which 3.11 refuses
    with stubbed("vllm", "flash_attn"):
        skyrl._callback_class.cache_clear()
        yield pytest.importorskip("skyrl.train.trainer")
        skyrl._callback_class.cache_clear()


class Workers:
    """SkyRL's worker dispatch: log-probs of the batch that it is handed, aligned to the right as SkyRL's are."""

    async def save_weights_for_sampler(self) -> None:
        pass

    def get_lcm_dp_size(self) -> int:
        return 1

    def empty_cache(self, model: str | None = None) -> None:
        pass

    def stage_data(self, model: str, data: Any, boundaries: list[tuple[int, int]]) -> list[Any]:
        return [data[start:end] for start, end in boundaries]

    def forward(self, model: str, data: Any) -> Any:
        return self.forward_from_staged(model, data)

    def forward_from_staged(self, model: str, chunk: Any) -> Any:
        width = chunk.metadata["response_length"]
        ids = chunk["sequences"][:, -width:]
        return SimpleNamespace(loss_fn_outputs=[{"logprobs": said("old_logprob", row).tolist()} for row in ids])

    def forward_backward_from_staged(self, model: str, chunk: Any) -> Any:
        return SimpleNamespace(metrics={"final_loss": 0.5, "policy_lr": 1e-6})

    def optim_step(self, model: str) -> float:
        return 3.0


def generated(batch: list[Sample]) -> dict[str, Any]:
    """What SkyRL's generator returns."""
    return {
        "prompt_token_ids": [s.prompt for s in batch],
        "response_ids": [s.response for s in batch],
        "rewards": [s.reward for s in batch],
        "loss_masks": [s.mask for s in batch],
        "rollout_logprobs": [s.column("rollout_logprob").tolist() for s in batch],
        "stop_reasons": None,
        "rollout_metrics": None,
    }


def make_trainer(real: Any, batches: list[list[Sample]], callback: Any) -> Any:
    from skyrl.train.config import SkyRLTrainConfig

    config = SkyRLTrainConfig()
    config.trainer.policy.model.path = "Qwen/Qwen3-0.6B"
    config.trainer.train_batch_size = config.trainer.policy_mini_batch_size = 2
    config.generator.n_samples_per_prompt = 2
    config.trainer.resume_mode = "none"
    config.trainer.ckpt_interval = config.trainer.hf_save_interval = config.trainer.eval_interval = -1
    config.trainer.print_example_interval = 0
    config.trainer.algorithm.use_kl_loss = False
    config.generator.inference_engine.enable_ray_prometheus_stats = False
    generator = SimpleNamespace(generate=AsyncMock(side_effect=[generated(b) for b in batches]))
    tokenizer = SimpleNamespace(pad_token_id=0, name_or_path="Qwen/Qwen3-0.6B", decode=lambda ids: "")
    client = SimpleNamespace(sleep=AsyncMock())
    trainer = real.RayPPOTrainer(config, MagicMock(), tokenizer, None, client, generator, callbacks=[callback])
    trainer.init_weight_sync_state = lambda: None
    trainer.dispatch = Workers()
    prompts = [{"prompt": "p", "env_class": "none", "env_extras": {}, "uid": uid} for uid in ("a", "b")]
    trainer.train_dataloader = [prompts for _ in batches]
    trainer.total_training_steps = len(batches)
    return trainer


def test_skyrls_own_loop(real: Any, fresh: Session, tmp_path: Path) -> None:
    batches = [samples(4), samples(4, seed=1)]
    callback = skyrl.TimscopeCallback(tmp_path / "run")
    trainer = make_trainer(real, batches, callback)
    assert isinstance(callback, sys.modules["skyrl.train.utils.callbacks"].TrainingCallback)
    asyncio.run(trainer.train())
    assert "compute_advantages_and_returns" not in vars(trainer) and fresh.recorder is None
    for step, batch in enumerate(batches, start=1):
        check_tokens(tmp_path / "run", batch, {"rollout_logprob", "old_logprob"}, step=step)
    with open_run(tmp_path / "run") as run:
        assert run.complete_steps == [1, 2] and run.manifest.recorder.errors == []
        rows = run.sql("SELECT * FROM sequences WHERE step = 1 ORDER BY sequence")
        assert rows["reward"].to_list() == [s.reward for s in batches[0]]
        assert rows["group_id"].to_list() == ["000001-a", "000001-a", "000001-b", "000001-b"]
        assert rows["weight_version"].to_list() == [0] * 4, (
            "SkyRL's own loop generates with the weights of the step before"
        )
        # GRPO of two: plus and minus one over the root of two, whatever the loss makes of it afterwards.
        assert rows["advantage"].to_list() == pytest.approx([-(0.5**0.5), 0.5**0.5] * 2, rel=1e-3)
        steps = run.steps()
        assert steps["grad_norm"].to_list() == [3.0, 3.0] and steps["loss"].to_list() == [0.5, 0.5]
        # SkyRL's own figure of the same mismatch, from the same batch.
        ours = run.sql("SELECT step, avg(abs(old_logprob - rollout_logprob)) AS gap FROM tokens WHERE mask GROUP BY 1")
        logged = steps["policy/rollout_train_logprobs_abs_diff_mean"].to_list()
        assert ours.sort("step")["gap"].to_list() == pytest.approx(logged, rel=1e-6)
        assert run.manifest.rollout.name == "vllm" and run.manifest.trainer.name == "fsdp"
        assert run.manifest.sampling.max_tokens == 1024 and "describe_error" not in run.manifest.environment


def test_pad_rows_of_skyrls_own_are_left_out(real: Any, fresh: Session, tmp_path: Path) -> None:
    """Step-wise training pads the batch to a multiple of the ranks."""
    batch = samples(4)
    trainer = make_trainer(real, [batch], skyrl.TimscopeCallback(tmp_path / "run"))
    trainer.dispatch.get_lcm_dp_size = lambda: 3
    trainer._remove_tail_data = lambda prompts: prompts
    trainer.cfg.trainer.recompute_old_logprobs_per_minibatch = False  # that forward leaves the pad rows out
    asyncio.run(trainer.train())
    check_tokens(tmp_path / "run", batch, {"rollout_logprob", "old_logprob"}, step=1)
