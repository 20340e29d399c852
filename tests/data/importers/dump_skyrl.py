"""Writes SkyRL's dumped training batches from samples: left-padded, right-aligned, filled up with copies of row 0."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from pickled_as import pretending
from samples import Sample

HOME = "skyrl.backends.skyrl_train.training_batch"


def encoded(value: torch.Tensor | list[torch.Tensor] | None) -> Any:
    """A column as SkyRL pickles it."""
    if value is None:
        return None
    if isinstance(value, list):
        return {"format": "tensor_list", "items": [encoded(v) for v in value]}
    if value.dtype == torch.bfloat16:
        buffer = io.BytesIO()
        torch.save(value, buffer)
        return {"format": "torch", "data": buffer.getvalue()}
    array = value.numpy()
    return {"format": "numpy", "data": array.tobytes(), "shape": array.shape, "dtype": str(array.dtype)}


def _rebuild_tensor_batch(cls: type, state: dict[str, Any]) -> Any:
    raise AssertionError("the importer must never call this")


class TrainingInputBatch(dict):
    """Pickles as SkyRL's batch does: through a module-level function, with the columns encoded one by one."""

    def __init__(self, columns: dict[str, Any], metadata: dict[str, Any]) -> None:
        super().__init__(columns)
        self.metadata = metadata

    def __reduce__(self) -> Any:
        state = {
            "batch_dict": {k: encoded(v) for k, v in self.items()},
            "batch_size": len(self["sequences"]),
            "device": torch.device("cpu"),
            "metadata": self.metadata,
        }
        return _rebuild_tensor_batch, (type(self), state)


def batch(samples: list[Sample], pad_size: int, dtype: torch.dtype = torch.float32) -> TrainingInputBatch:
    total = max(len(s.ids) for s in samples)
    width = max(len(s.response) for s in samples)

    def right(values: list[list[Any]], size: int, dtype: torch.dtype) -> torch.Tensor:
        block = torch.zeros(len(values), size, dtype=dtype)
        for i, row in enumerate(values):
            block[i, size - len(row) :] = torch.tensor(row, dtype=dtype)
        return block

    def filled(block: torch.Tensor, zero: bool = False) -> torch.Tensor:
        return torch.cat([block, *[torch.zeros_like(block[:1]) if zero else block[:1]] * pad_size])

    rollout = [[r if s else 0.0 for r, s in zip(x.rollout, x.sampled, strict=True)] for x in samples]
    columns = {
        "sequences": filled(right([s.ids for s in samples], total, torch.int64)),
        "attention_mask": filled(right([[1] * len(s.ids) for s in samples], total, torch.int64)),
        "response_mask": filled(right([[1] * len(s.response) for s in samples], width, torch.int64)),
        "loss_mask": filled(
            right([[float(m and s.in_loss) for m in s.sampled] for s in samples], width, torch.float32), zero=True
        ),
        "rollout_logprobs": filled(right(rollout, width, torch.float32)),
        "action_log_probs": filled(right([s.trainer for s in samples], width, dtype)),
        "advantages": filled(right([s.advantage for s in samples], width, torch.float32)),
        "base_action_log_probs": None,
        "pixel_values": [torch.zeros(2, 3)] * (len(samples) + pad_size),
    }
    half = (len(samples) + 1) // 2
    boundaries = [(0, half), (half, len(samples))] if half < len(samples) else [(0, half)]
    return TrainingInputBatch(
        columns,
        {"policy_prompt_boundaries": boundaries, "policy_mini_batch_boundaries": [(0, len(samples))],
         "response_length": width, "pad_size": pad_size},
    )  # fmt: skip


def write_skyrl(folder: Path, steps: dict[int, list[Sample]], pad_size: int = 0, **options: Any) -> Path:
    for step, samples in steps.items():
        save(batch(samples, pad_size, **options), folder / "dumped_data" / f"global_step_{step}_training_input.pkl")
    return folder


def save(one: TrainingInputBatch, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with pretending(HOME, _rebuild_tensor_batch=_rebuild_tensor_batch, TrainingInputBatch=TrainingInputBatch):
        path.write_bytes(pickle.dumps(one))
