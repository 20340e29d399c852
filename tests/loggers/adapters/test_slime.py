"""The slime hook against rollout data of the shape of slime 624b824a (not on any registry, never run here)."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from marked import Sample, check_tokens, never, samples

from timscope.data import open_run
from timscope.loggers.adapters import slime
from timscope.loggers.adapters.session import Session

COLUMNS = {"rollout_log_probs": "rollout_logprob", "log_probs": "old_logprob", "ref_log_probs": "ref_logprob"}


def arguments(**more: Any) -> SimpleNamespace:
    return SimpleNamespace(
        hf_checkpoint="/models/Qwen3-4B",
        rollout_temperature=0.8,
        rollout_top_p=1.0,
        rollout_top_k=-1,
        rollout_max_response_len=64,
        advantage_estimator="grpo",
        bf16=True,
        n_samples_per_prompt=2,
        rollout_batch_size=2,
        **more,
    )


def rollout_data(batch: list[Sample], partition: list[int], without: tuple[str, ...] = ()) -> dict[str, Any]:
    """One data parallel rank's share, as slime has it before training: lists of 1-D tensors."""
    mine = [batch[p] for p in partition]
    return {
        "partition": partition,
        "tokens": [torch.tensor(s.prompt + s.response) for s in mine],
        "response_lengths": [len(s.response) for s in mine],
        "total_lengths": [len(s.prompt + s.response) for s in mine],
        "loss_masks": [torch.tensor(s.mask, dtype=torch.int) for s in mine],
        "truncated": [int(p == 1) for p in partition],
        "raw_reward": [s.reward for s in batch],
        "local_raw_reward": [s.reward for s in mine],
        "rewards": [0.0 for _ in mine],
        "advantages": [torch.full((len(s.response),), s.advantage) for s in mine],
        "micro_batch_indices": [[1], [0]],
        "num_microbatches": [2],
        **{name: [s.column(c) for s in mine] for name, c in COLUMNS.items() if name not in without},
    }


def test_rows_land_on_the_tokens_they_score(asked: Path, fresh: Session) -> None:
    batch = samples(4)
    first, second = rollout_data(batch, [2, 0]), rollout_data(batch, [3, 1])
    kept = {name: value[0].clone() for name, value in first.items() if isinstance(value[0], torch.Tensor)}
    for number, data in enumerate((first, second)):
        slime.record(arguments(), number, data)
    fresh.close()
    assert all(torch.equal(first[name][0], value) for name, value in kept.items()), "slime's data is untouched"
    check_tokens(asked, [batch[0], batch[2]], set(COLUMNS.values()), step=0)
    check_tokens(asked, [batch[1], batch[3]], set(COLUMNS.values()), step=1)
    with open_run(asked) as run:
        rows = run.sql("SELECT * FROM sequences ORDER BY step, sequence")
        assert rows["sequence"].to_list() == [0, 2, 1, 3], "numbered over all ranks"
        assert rows["group_id"].to_list() == ["000000-00000", "000000-00001", "000001-00000", "000001-00001"]
        assert rows["reward"].to_list() == [batch[i].reward for i in (0, 2, 1, 3)]
        assert rows["advantage"].to_list() == [batch[i].advantage for i in (0, 2, 1, 3)]
        assert rows["micro_batch"].to_list() == [0, 1, 0, 1]
        assert rows["finish_reason"].to_list() == ["stop", "stop", "length", "stop"]
        assert rows["weight_version"].to_list() == [None] * 4
        m = run.manifest
        assert m.recorder.errors == [] and m.framework and m.framework.name == "slime"
        assert (m.model.name, m.rollout.name, m.trainer.dtype) == ("Qwen3-4B", "sglang", "bfloat16")
        assert m.logprobs["old_logprob"].model_dump() == {"mode": "raw", "temperature": 0.8}


def test_without_old_logprobs_nothing_is_made_up(asked: Path, fresh: Session) -> None:
    batch = samples(4)
    data = rollout_data(batch, [0, 1, 2, 3], without=("log_probs", "ref_log_probs"))
    slime.record(
        arguments(use_rollout_logprobs=True), 0, data | {"weight_versions": [["3"], ["3", "4"], ["4", "4"], []]}
    )
    fresh.close()
    check_tokens(asked, batch, {"rollout_logprob"}, step=0)
    with open_run(asked) as run:
        assert run.manifest.algorithm.loss_mode == "bypass"
        rows = run.sql("SELECT weight_version AS v, micro_batch AS m FROM sequences ORDER BY sequence")
        assert rows["v"].to_list() == [3, None, 4, None] and rows["m"].to_list() == [1, 0, None, None]


class Mpu:
    """Megatron's parallel state of one rank."""

    def __init__(
        self, dp: tuple[int, int] = (0, 1), tp: int = 0, cp: tuple[int, int] = (0, 1), last: bool = True
    ) -> None:
        self.dp, self.tp, self.cp, self.last = dp, tp, cp, last

    def model_parallel_is_initialized(self) -> bool:
        return True

    def get_tensor_model_parallel_rank(self) -> int:
        return self.tp

    def get_context_parallel_rank(self) -> int:
        return self.cp[0]

    def get_context_parallel_world_size(self) -> int:
        return self.cp[1]

    def get_data_parallel_rank(self, with_context_parallel: bool) -> int:
        assert not with_context_parallel
        return self.dp[0]

    def get_data_parallel_world_size(self, with_context_parallel: bool) -> int:
        assert not with_context_parallel
        return self.dp[1]

    def is_pipeline_last_stage(self, ignore_virtual: bool) -> bool:
        assert ignore_virtual
        return self.last


def on_rank(monkeypatch: pytest.MonkeyPatch, mpu: Mpu) -> None:
    core = ModuleType("megatron.core")
    core.mpu = mpu  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "megatron", ModuleType("megatron"))
    monkeypatch.setitem(sys.modules, "megatron.core", core)


def test_one_rank_of_each_data_parallel_group_writes(
    asked: Path, fresh: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, shares = samples(4), ([2, 0], [3, 1])
    for dp in (0, 1):
        for mpu in (Mpu((dp, 2), tp=1), Mpu((dp, 2), last=False), Mpu((dp, 2))):
            on_rank(monkeypatch, mpu)
            slime.record(arguments(), 0, rollout_data(batch, shares[dp]))
            assert (fresh.recorder is not None) == (mpu.tp == 0 and mpu.last)
            fresh.close()
    check_tokens(asked, batch, set(COLUMNS.values()), step=0)
    with open_run(asked) as run:
        assert run.manifest.world_size == 2 and run.complete_steps == [0]
        assert run.sql("SELECT rank FROM sequences ORDER BY sequence")["rank"].to_list() == [0, 1, 0, 1]


def test_context_parallel_ranks_say_what_they_cannot_record(
    asked: Path, fresh: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = samples(4)
    on_rank(monkeypatch, Mpu(cp=(0, 2)))
    data = rollout_data(batch, [0, 1, 2, 3])
    for name in (*COLUMNS, "advantages"):
        data[name] = [row[: len(row) // 2] for row in data[name]]  # this rank's part
    slime.record(arguments(), 0, data)
    fresh.close()
    check_tokens(asked, batch, set(), step=0)
    with open_run(asked) as run:
        errors = " ".join(run.manifest.recorder.errors)
        assert "--dump-details" in errors and "old_logprob" in errors and "advantage" in errors
        assert run.sql("SELECT reward FROM sequences ORDER BY sequence")["reward"].to_list() == [
            s.reward for s in batch
        ]


def test_an_error_in_the_hook_stays_there(asked: Path, fresh: Session) -> None:
    slime.record(arguments(), 0, {"tokens": None})
    slime.record(object(), 1, None)  # type: ignore[arg-type]
    fresh.close()
    with open_run(asked) as run:
        assert run.complete_steps == [0, 1] and len(run.tokens()) == 0
        assert len(run.manifest.recorder.errors) == 1 and "response_lengths" in run.manifest.recorder.errors[0]


def test_nothing_happens_unless_a_run_is_asked_for(fresh: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slime, "read_rows", never("read_rows"))
    slime.record(arguments(), 0, rollout_data(samples(4), [0, 1]))
    assert fresh.recorder is None
