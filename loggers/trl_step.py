"""From the micro-batches of one optimizer step, permuted by TRL, back to rollouts with everything said of them.

All of it runs on the writer's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from timscope.loggers.arrays import Array
from timscope.loggers.bundle import Step
from timscope.loggers.pinned import Snapshot
from timscope.loggers.trl_rollout import Batch, Generation, untag


@dataclass
class MicroBatch:
    """One `_compute_loss` call over rows of one generation. `said`: their tags (b,) and the scalar loss; `forward`:
    log-probs and entropies (b, C) of the loss's forward, None where it was not seen."""

    generation: Generation
    said: Snapshot
    forward: Snapshot | None


def fill_step(step: Step, micro: Sequence[MicroBatch], averaged: bool) -> None:
    """Put the rows that the step's losses used into `step`, and the step's loss: the sum over micro-batches, or their
    mean where the trainer scales the loss only afterwards (`averaged`).

    Rows keep their number in the generation batch, so a step that used a part of it has gaps. Where one optimizer step
    runs over a row twice (several iterations inside one accumulation) the first pass is kept.
    """
    if not micro:
        return
    losses = [float(m.said.result()["loss"]) for m in micro]
    step.metrics(loss=float(np.mean(losses) if averaged else np.sum(losses)))
    generations = list(dict.fromkeys(m.generation for m in micro))
    for place, generation in enumerate(generations):
        mine = [(index, m) for index, m in enumerate(micro) if m.generation is generation]
        # Numbers are unique over ranks: each rank has a range of its own, with room for all generations of the step.
        base = generation.base * len(generations) + place * len(generation)
        _fill_generation(step, generation, mine, base)


def _fill_generation(step: Step, generation: Generation, mine: list[tuple[int, MicroBatch]], base: int) -> None:
    tags = np.concatenate([m.said.result()["tags"].reshape(-1) for _, m in mine])
    index = np.concatenate([np.full(m.said.result()["tags"].size, i) for i, m in mine])
    numbers, every = untag(tags)
    if np.any(numbers != generation.number):
        raise ValueError("a loss used rows of another generation than the last: the rows cannot be told apart")
    rows, first = np.unique(every, return_index=True)
    batch = generation.batch
    tokens = {name: block[rows] for name, block in batch.tokens.items()}
    per_row = {name: [values[r] for r in rows] for name, values in batch.rows.items()}
    said = step.rollout(
        prompt_ids=batch.prompt_ids[rows],
        prompt_mask=batch.prompt_mask[rows],
        completion_ids=batch.completion_ids[rows],
        completion_mask=batch.real[rows],
        sequence=base + rows,
        rollout_logprob=tokens.pop("rollout_logprob", None),
        weight_version=generation.weight_version,
    )
    advantage = per_row.pop("advantage", None)
    step.scores(
        rows=said,
        reward=per_row.pop("reward"),
        advantage=tokens.pop("advantage", None) if advantage is None else advantage,
        rewards={name: [values[r] for r in rows] for name, values in batch.rewards.items()},
    )
    forward = {
        column: _from_loss(batch, rows, first, mine, name)
        for column, name in (("loss_logprob", "logps"), ("entropy", "entropies"))
    }
    step.trainer(rows=said, micro_batch=index[first], **forward, **tokens, **per_row)


def _from_loss(batch: Batch, rows: Array, first: Array, mine: list[tuple[int, MicroBatch]], name: str) -> Array | None:
    """The loss's values of `rows` (n, C), masked where its forward did not attend to the token."""
    blocks: list[Any] = [None if m.forward is None else m.forward.result().get(name) for _, m in mine]
    if any(block is None for block in blocks):
        return None
    values = np.concatenate(blocks)[first]
    attended = batch.attended[rows]
    if values.shape[1] < attended.shape[1]:  # a batch cut to its longest row
        values = np.pad(values, ((0, 0), (0, attended.shape[1] - values.shape[1])))
    return np.ma.array(values[:, : attended.shape[1]], mask=~attended)
