"""Writes verl's rollout cache (tq_batch.pt) from samples: real TensorDicts of jagged nested tensors, torch.save."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from samples import Sample
from tensordict import TensorDict
from tensordict.tensorclass import NonTensorStack


def jagged(rows: list[list[Any]], dtype: torch.dtype) -> torch.Tensor:
    """Rows as a field is packed: a jagged nested tensor."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.as_nested_tensor([torch.tensor(r, dtype=dtype) for r in rows], layout=torch.jagged)


def payload(samples: list[Sample], step: int, versions: list[tuple[int, int]] | None = None) -> dict[str, Any]:
    """What verl saves of one mini-batch; two trajectories a prompt."""
    versions = versions or [(step - 1, step - 1)] * len(samples)
    fields = {
        "prompts": jagged([s.prompt for s in samples], torch.int64),
        "responses": jagged([s.response for s in samples], torch.int64),
        "input_ids": jagged([s.ids for s in samples], torch.int64),
        "response_mask": jagged([[int(m) for m in s.sampled] for s in samples], torch.int64),
        "rollout_log_probs": jagged(
            [[r if m else 0.0 for r, m in zip(s.rollout, s.sampled, strict=True)] for s in samples], torch.float32
        ),
        "rm_scores": jagged([[0.0] * (len(s.response) - 1) + [s.reward] for s in samples], torch.float32),
        "num_turns": NonTensorStack(*[2 + i for i in range(len(samples))]),
        "extra_fields": NonTensorStack(*[{"reward_extra_info": {}} for _ in samples]),
    }
    tags = [
        {"status": "success", "prompt_len": len(s.prompt), "response_len": len(s.response),
         "seq_len": len(s.ids), "global_steps": step, "min_global_steps": low, "max_global_steps": high}
        for s, (low, high) in zip(samples, versions, strict=True)
    ]  # fmt: skip
    keys = [f"uid{i // 2}-x_{i % 2}_0" for i in range(len(samples))]
    return {
        "tensordict": TensorDict(fields, batch_size=[len(samples)]), "tags": tags, "keys": keys, "global_steps": step,
    }  # fmt: skip


def save(one: dict[str, Any], folder: Path, inner: int = 0) -> Path:
    """Write it where verl does, below `folder`; returns the file."""
    step = one["global_steps"]
    place = folder / "exp_project" / "GBS4_N2_in8_out8" / str(step) / str(inner)
    place.mkdir(parents=True, exist_ok=True)
    torch.save(one, place / "tq_batch.pt")
    (place / "meta.json").write_text(json.dumps({"global_steps": step, "num_trajectories": len(one["keys"])}))
    return place / "tq_batch.pt"


def write_verl(folder: Path, steps: dict[int, list[list[Sample]]]) -> Path:
    """`steps`: by global step, the samples of each inner mini-batch."""
    for step, minis in steps.items():
        for inner, samples in enumerate(minis):
            save(payload(samples, step), folder, inner)
    return folder
