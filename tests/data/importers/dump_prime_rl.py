"""Writes prime-rl's token_exports, with the traces and metrics that lie beside them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from samples import Sample

FILLER = -math.log(32000)  # log(1/V): index 0 of a sequence holds it


def line(sample: Sample, step: int, rank: int, index: int) -> dict[str, Any]:
    """One line: unpadded, log-prob i scores token i, 0.0 where the engine sampled nothing, null for non-finite."""
    p, n = len(sample.prompt), len(sample.response)
    rollout = [0.0] * p + [v if s else 0.0 for v, s in zip(sample.rollout, sample.sampled, strict=True)]
    trainer = ([FILLER] + [-6.5] * p)[:p] + sample.trainer
    ratio = [_exp(t - r) for t, r in zip(trainer, rollout, strict=True)]
    columns: dict[str, list[Any]] = {
        "token_ids": sample.ids,
        "position_ids": list(range(p + n)),
        "loss_mask": [False] * p + [s and sample.in_loss for s in sample.sampled],
        "advantages": [0.0] * p + sample.advantage,
        "inference_logprobs": rollout,
        "trainer_logprobs": trainer,
        "entropy": [0.5 + i for i in range(p + n)],
        "mismatch_kl": [0.0] * (p + n),
        "importance_ratio": ratio,
        "is_masked": [False] * (p + n - 1) + [True],
        "rl_weights": [None] * (p + n),
    }
    head = {"schema_version": 1, "step": step, "rank": rank, "micro_step": index // 2, "micro_sequence_idx": 0}
    return {**head, "export_sequence_idx": index, "env_name": "math", **{k: _json(v) for k, v in columns.items()}}


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def _json(values: list[Any]) -> list[Any]:
    return [None if isinstance(v, float) and not math.isfinite(v) else v for v in values]


def write(output: Path, step: int, ranks: Sequence[Sequence[Sample]], *, stable: bool = True, stride: int = 1) -> Path:
    """One step's folder: `ranks[i]` goes to the file of rank i * stride."""
    folder = output / "token_exports" / f"step_{step}"
    folder.mkdir(parents=True, exist_ok=True)
    for i, samples in enumerate(ranks):
        rank = i * stride
        text = "".join(json.dumps(line(s, step, rank, j), allow_nan=False) + "\n" for j, s in enumerate(samples))
        (folder / f"rank_{rank}.jsonl").write_text(text)
    if stable:
        (folder / "STABLE").touch()
    return output


def trace(sample: Sample, group: str, *, start: int = 3, end: int = 3, reward: float = 1.0) -> dict[str, Any]:
    """An episode whose only trace has the sample as a path of two messages, and a second leaf beside the answer."""
    nodes = [
        {"message": {}, "token_ids": sample.prompt, "mask": [False] * len(sample.prompt)},
        {"parent": 0, "sampled": True, "token_ids": sample.response, "mask": sample.sampled, "logprobs": []},
        {"parent": 0, "sampled": True, "token_ids": [1, 2, 3], "mask": [True] * 3},
    ]
    return {
        "id": f"episode-{group}",
        "group": {"id": group},
        "run": {"type": "train", "work": {"step": 1, "policy": {"start": start, "end": end}}},
        "traces": [
            {
                "id": f"trace-{group}",
                "nodes": nodes,
                "calls": [{"node": 1, "finish_reason": "stop"}],
                "rewards": {"right": {"score": reward, "weight": 2.0}, "form": {"score": 0.5}, "failed": None},
            }
        ],
    }


def write_traces(output: Path, step: int, episodes: Sequence[dict[str, Any]], subset: str = "effective") -> None:
    """The traces of a step."""
    folder = output / "rollouts" / f"step_{step}" / "train" / subset
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "traces.jsonl").write_text("".join(json.dumps(e) + "\n" for e in episodes))
