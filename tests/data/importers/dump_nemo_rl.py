"""Writes NeMo-RL's train_data_step{N}.jsonl: right-padded batches, sliced into batches of one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from samples import Sample

FILLED = -7.5  # what the trainer says about prompt tokens; column 0 is never used


def line(sample: Sample, index: int, width: int, *, token_ids: bool = True) -> dict[str, Any]:
    """One line. The trainer scores every token, the engine only what it sampled: elsewhere its column is 0.0."""
    p, n = len(sample.prompt), len(sample.response)
    pad = width - p - n

    def padded(head: list[Any], values: Sequence[Any], fill: Any) -> list[Any]:
        return [[*head, *values, *[fill] * pad]]

    rollout = [v if s else 0.0 for v, s in zip(sample.rollout, sample.sampled, strict=True)]
    data = {
        "content": [["".join(map(chr, range(97, 97 + min(p, 20)))), "answer"]],
        "rewards": [sample.reward],
        "input_lengths": [p + n],
        "token_ids": padded(sample.prompt, sample.response, 0),
        "token_loss_mask": padded([0] * p, [int(s) for s in sample.sampled], 0),
        "sample_loss_mask": [float(sample.in_loss)],
        "advantages": padded([9.0] * p, sample.advantage, 0.0),
        "generation_logprobs": padded([0.0] * p, rollout, 0.0),
        "prev_logprobs": padded([FILLED] * p, sample.trainer, FILLED),
        **sample.extra,
        "idx": index,
    }
    if not token_ids:
        del data["token_ids"], data["content"]
    return data


def write(folder: Path, step: int, samples: Sequence[Sample], extra_pad: int = 0, **options: Any) -> Path:
    """One step's file."""
    width = max(len(s.ids) for s in samples) + extra_pad
    path = folder / f"train_data_step{step}.jsonl"
    path.write_text("".join(json.dumps(line(s, i, width, **options)) + "\n" for i, s in enumerate(samples)))
    return path
