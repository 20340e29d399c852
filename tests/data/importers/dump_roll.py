"""Writes ROLL's rollout mock dumps from samples: a pickled DataProto whose batch is a torch file inside the pickle."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pickled_as import pretending
from samples import Sample
from tensordict import TensorDict

HOME = "roll.distributed.scheduler.protocol"


class DataProto:
    """Pickles as ROLL's does: (torch file in a BytesIO, object columns, remote batch, meta)."""

    def __init__(self, batch: TensorDict, non_tensor: dict[str, Any], meta: dict[str, Any], consolidate: bool = True):
        self.batch, self.non_tensor, self.meta, self.consolidate = batch, non_tensor, meta, consolidate

    def __getstate__(self) -> Any:
        buffer = io.BytesIO()
        torch.save(self.batch.contiguous().consolidate() if self.consolidate else self.batch, buffer)
        return buffer, self.non_tensor, None, self.meta

    def __setstate__(self, state: Any) -> None:
        raise AssertionError("the importer must never call this")


def proto(samples: list[Sample], logprobs: bool = True, pad: int = 3, **options: Any) -> DataProto:
    total = max(len(s.ids) for s in samples) + pad

    def padded(rows: list[list[Any]], dtype: torch.dtype, width: int = total) -> torch.Tensor:
        block = torch.zeros(len(rows), width, dtype=dtype)
        for i, row in enumerate(rows):
            block[i, : len(row)] = torch.tensor(row, dtype=dtype)
        return block

    columns = {
        "input_ids": padded([s.ids for s in samples], torch.int64),
        "attention_mask": padded([[1] * len(s.ids) for s in samples], torch.int64),
        "prompt_mask": padded([[1] * len(s.prompt) for s in samples], torch.bool),
        "response_mask": padded([[False] * len(s.prompt) + s.sampled for s in samples], torch.bool),
        "scores": torch.tensor([s.reward for s in samples]),
    }
    if logprobs:
        # Column j scores token j + 1, so the response's first value is in column len(prompt) - 1.
        rows = [
            ([0.0] * len(s.prompt) + [r if m else 0.0 for r, m in zip(s.rollout, s.sampled, strict=True)])[1:]
            for s in samples
        ]
        columns["infer_logprobs"] = padded(rows, torch.float32, total - 1)
    objects = {"domain": np.array(["math"] * len(samples), dtype=object)}
    meta = {
        "global_step": 1,
        "generation_config": {"temperature": 0.8, "top_p": 0.9, "top_k": 50, "max_new_tokens": 64},
    }
    return DataProto(TensorDict(columns, batch_size=[len(samples)]), objects, meta, **options)


def save(one: DataProto, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with pretending(HOME, DataProto=DataProto):
        path.write_bytes(pickle.dumps(one))
    return path


def write_roll(folder: Path, steps: dict[int, list[Sample]], mode: str = "train", **options: Any) -> Path:
    for step, samples in steps.items():
        save(proto(samples, **options), folder / mode / f"step_{step:06d}.pkl")
    return folder
