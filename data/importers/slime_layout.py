"""How slime's trainer laid a batch out: the data-parallel rank and micro-batch of each sample, and what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from timscope.data.importers.base import Findings


def micro_batches(train: Mapping[str, Any]) -> dict[int, int]:
    """Rollout position -> number of its micro-batch on its rank.

    A shard's `partition` lists the rollout positions of its samples; `micro_batch_indices` lists, a micro-batch, the
    places in that list. Shards without either give nothing.
    """
    found: dict[int, int] = {}
    for shard in train.get("dp_shards") or []:
        partition, batches = shard.get("partition"), shard.get("micro_batch_indices")
        if partition is None or batches is None:
            continue
        places = [int(p) for p in partition]
        for number, batch in enumerate(batches):
            found |= {places[int(i)]: number for i in batch if 0 <= int(i) < len(places)}
    return found


def trained_ranks(train: Mapping[str, Any]) -> list[int]:
    """The data-parallel ranks that have samples in a train dump, sorted."""
    return sorted({int(s["data_parallel_rank"]) for s in train["samples"] if s.get("data_parallel_rank") is not None})


def note_missing(step: int, train: Mapping[str, Any], findings: Findings) -> None:
    """Note ranks and samples that the layout names, or that the ranks' numbers imply, and the file lacks."""
    there, shards = trained_ranks(train), train.get("dp_shards") or []
    named = {int(s["data_parallel_rank"]) for s in shards if s.get("data_parallel_rank") is not None} | {*there}
    if missing := sorted(set(range(max(named, default=-1) + 1)) - {*there}):
        findings.note("missing-rank", "train dumps lack data-parallel ranks", step=step, missing=missing, ranks=there)
    positions = {int(s["rollout_position"]) for s in train["samples"] if s.get("rollout_position") is not None}
    planned = {int(p) for s in shards for p in (s.get("partition") or ())}
    if lost := sorted(planned - positions):
        findings.note(
            "integrity", "samples that the layout names are not in the train dump", len(lost), step=step,
            first=lost[:20],
        )  # fmt: skip
