"""From the micro-batches of one optimizer step, permuted by TRL, back to rollouts with everything said of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from timscope.loggers.arrays import Array, copied
from timscope.loggers.bundle import Step
from timscope.loggers.trl_rollout import Generation, untag


@dataclass
class MicroBatch:
    """One `_compute_loss` call: tags (b,), log-probs and entropies (b, C) of the loss's forward, the scalar loss."""

    tags: Any
    logps: Any
    entropies: Any
    loss: Any

    @property
    def generation(self) -> int:
        """The number of the generation that the rows belong to (a micro-batch never mixes two)."""
        number, _row = untag(int(self.tags.reshape(-1)[0]))
        return number


def fill_step(step: Step, micro: Sequence[MicroBatch], generations: Mapping[int, Generation]) -> None:
    """Put the rows that the step's losses used into `step`, and the step's loss (the sum over micro-batches).

    Rows keep their number in the generation batch, so a step that used a part of it has gaps. Where one optimizer step
    runs over a row twice (several iterations inside one accumulation) the first pass is kept.
    """
    if not micro:
        return
    step.metrics(loss=float(np.sum([float(copied(m.loss)) for m in micro])))
    order = list(dict.fromkeys(m.generation for m in micro))
    offset = {number: k for k, number in enumerate(order)}
    first: dict[int, tuple[int, int]] = {}
    tags = [[int(t) for t in copied(m.tags).reshape(-1)] for m in micro]
    for index, batch in enumerate(tags):
        for place, tag in enumerate(batch):
            first.setdefault(tag, (index, place))
    blocks = [(_block(m.logps), _block(m.entropies)) for m in micro]
    for number in order:
        generation = generations[number]
        used = sorted(tag for tag in first if untag(tag)[0] == number)
        _fill_generation(
            step,
            generation,
            [untag(t)[1] for t in used],
            [first[t] for t in used],
            blocks,
            generation.base * len(order) + offset[number] * len(generation),
        )


def _block(values: Any) -> Array | None:
    return None if values is None else copied(values)


def _fill_generation(
    step: Step,
    generation: Generation,
    rows: Sequence[int],
    places: Sequence[tuple[int, int]],
    blocks: Sequence[tuple[Array | None, Array | None]],
    base: int,
) -> None:
    columns = {name: [c[r] for r in rows] for name, c in generation.columns.items() if name != "attended"}
    said = step.rollout(
        prompt_ids=[generation.prompt_ids[r] for r in rows],
        completion_ids=[generation.completion_ids[r] for r in rows],
        sequence=[base + r for r in rows],
        rollout_logprob=columns.pop("rollout_logprob", None),
        weight_version=generation.weight_version,
    )
    loss, entropy = (_from_loss(generation, rows, places, [b[k] for b in blocks]) for k in (0, 1))
    per_row = {name: [values[r] for r in rows] for name, values in generation.per_row.items()}
    reward = per_row.pop("reward")
    advantage = per_row.pop("advantage", None)
    if advantage is None:
        advantage = columns.pop("advantage", None)
    columns["mask"] = [row.astype(bool) for row in columns["mask"]]
    micro_batch = [place[0] for place in places]
    step.trainer(rows=said, loss_logprob=loss, entropy=entropy, micro_batch=micro_batch, **columns, **per_row)
    rewards = {name: [values[r] for r in rows] for name, values in generation.rewards.items()}
    step.scores(rows=said, reward=reward, advantage=advantage, rewards=rewards)


def _from_loss(
    generation: Generation, rows: Sequence[int], places: Sequence[tuple[int, int]], blocks: Sequence[Array | None]
) -> list[Array] | None:
    """The loss's values of `rows`, cut to their length; NaN where the forward did not attend to the token."""
    if any(block is None for block in blocks):
        return None
    result = []
    for row, (index, place) in zip(rows, places, strict=True):
        values = np.asarray(blocks[index])[place, : len(generation.completion_ids[row])]
        result.append(np.where(generation.attended(row), values.astype(np.float64), np.nan))
    return result
