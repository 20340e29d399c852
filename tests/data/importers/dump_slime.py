"""Writes slime's --dump-details folder from samples, with torch.save as slime does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from samples import Sample


class UserObject:
    """Something that a user's rollout function left in a sample's metadata."""

    def __init__(self) -> None:
        self.note = "not data"


def rollout_sample(sample: Sample, index: int, versions: list[str]) -> dict[str, Any]:
    """One entry of rollout_data's `samples`."""
    return {
        "group_index": index // 2,
        "index": index,
        "prompt": f"prompt {index}",
        "tokens": list(sample.ids),
        "response": f"response {index}",
        "response_length": len(sample.response),
        "label": None,
        "reward": sample.reward,
        "loss_mask": [int(s) for s in sample.sampled],
        "weight_versions": versions,
        "rollout_log_probs": [r if s else 0.0 for r, s in zip(sample.rollout, sample.sampled, strict=True)],
        "remove_sample": not sample.in_loss,
        "status": "completed" if index % 2 else "truncated",
        "metadata": {"object": UserObject()},
        "spec_info": {"spec_accept_token_num": 0},
    }


def train_sample(sample: Sample, position: int, rank: int) -> dict[str, Any]:
    """One entry of train_data's `samples`."""
    sampled = torch.tensor(sample.sampled)
    return {
        "data_parallel_rank": rank,
        "sample_index": position,
        "rollout_position": position,
        "tokens": torch.tensor(sample.ids),
        "response_lengths": len(sample.response),
        "total_lengths": len(sample.ids),
        "rewards": sample.reward - 1,
        "loss_masks": (sampled & sample.in_loss).to(torch.int),
        "rollout_log_probs": torch.where(sampled, torch.tensor(sample.rollout), 0.0),
        "log_probs": torch.tensor(sample.trainer),
        "advantages": torch.tensor(sample.advantage),
    }


def micro_batches(count: int, ranks: int) -> dict[int, tuple[int, int]]:
    """Position -> (rank, micro-batch): positions dealt out in turn, two a micro-batch."""
    return {p: (p % ranks, p // ranks // 2) for p in range(count)}


def write_slime(
    folder: Path,
    steps: dict[int, list[Sample]],
    *,
    versions: dict[int, list[str]] | None = None,
    ranks: int = 2,
    drop_ranks: frozenset[int] = frozenset(),
    train: bool = True,
) -> Path:
    """`versions`: a rollout's weight versions by position, default the step's number. `drop_ranks`: ranks whose samples
    and layout never reached the train file."""
    for step, samples in steps.items():
        named = [rollout_sample(s, i, (versions or {}).get(i, [str(step)])) for i, s in enumerate(samples)]
        _save({"rollout_id": step, "samples": named}, folder / "rollout_data" / f"{step}.pt")
        if not train:
            continue
        where = micro_batches(len(samples), ranks)
        kept = {p: place for p, place in where.items() if place[0] not in drop_ranks}
        shards = []
        for rank in sorted(set(range(ranks)) - drop_ranks):
            partition = [p for p, place in kept.items() if place[0] == rank]
            batches: dict[int, list[int]] = {}
            for i, p in enumerate(partition):
                batches.setdefault(where[p][1], []).append(i)
            shards.append(
                {"rank": rank * 4, "data_parallel_rank": rank, "sample_indices": partition, "partition": partition,
                 "micro_batch_indices": list(batches.values()), "num_microbatches": [len(batches)]}
            )  # fmt: skip
        trained = [train_sample(samples[p], p, place[0]) for p, place in kept.items()]
        payload = {"format_version": 2, "rollout_id": step, "rank": 0, "samples": trained, "dp_shards": shards}
        _save(payload, folder / "train_data" / f"{step}.pt")
    return folder


def _save(payload: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(payload, path)
