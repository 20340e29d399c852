"""Rows of SkyRL's TrainingInputBatch: everything is padded on the left and aligned to the right.

`sequences`, `attention_mask` (B, T) hold prompt and response; response tensors (B, R) belong to the last R positions,
and `response_mask` says which of those are response tokens. The last `pad_size` rows are copies of row 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from timscope.loggers.adapters.columns import advantages, counted, sampled, selected, totals
from timscope.loggers.arrays import Array, numbers
from timscope.loggers.bundle import Step

_TRAINER_COLUMNS = {"old_logprob": "action_log_probs", "ref_logprob": "base_action_log_probs"}


@dataclass
class Scored:
    """What the batch held when the advantages had just been computed: (B, R) tensors and one uid a row."""

    rewards: Any = None
    advantages: Any = None
    uids: Sequence[str] | None = None

    @classmethod
    def of(cls, batch: Any) -> Scored:
        """Keep references: SkyRL pops these or puts new tensors in their place, it does not write into them."""
        uids = (batch.metadata or {}).get("uids")
        return cls(batch.get("rewards"), batch.get("advantages"), None if uids is None else list(uids))


def read_rows(step: Step, batch: Any, scored: Scored, version: int | None) -> None:
    """Put the rows of `batch` into `step`. `version`: of the weights that generated them, None where not known."""
    real = len(batch["sequences"]) - int((batch.metadata or {}).get("pad_size") or 0)
    sequences = numbers(batch["sequences"])[:real]
    there = numbers(batch["attention_mask"])[:real].astype(bool)
    response = numbers(batch["response_mask"])[:real].astype(bool)
    width = response.shape[1]
    place = np.zeros_like(there)
    place[:, place.shape[1] - width :] = response

    def cut(block: Any) -> list[Array] | None:
        return None if block is None else selected(numbers(block)[:real], response)

    mask = [row > 0 for row in selected(numbers(batch["loss_mask"])[:real], response)]
    rollout, paid, advantage = cut(batch.get("rollout_logprobs")), cut(scored.rewards), cut(scored.advantages)
    groups = None if scored.uids is None else [f"{step.number:06d}-{uid}" for uid in scored.uids[:real]]
    rows = step.rollout(
        prompt_ids=selected(sequences, there & ~place),
        completion_ids=selected(sequences, place),
        rollout_logprob=None if rollout is None else sampled(rollout, mask),
        weight_version=version,
        uid=None if groups is None else counted(groups),
        group_id=groups,
    )
    step.trainer(rows=rows, mask=mask, **{column: cut(batch.get(field)) for column, field in _TRAINER_COLUMNS.items()})
    step.scores(
        rows=rows,
        reward=None if paid is None else totals(paid),
        advantage=None if advantage is None else advantages(advantage, mask),
    )
