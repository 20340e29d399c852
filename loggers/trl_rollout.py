"""One GRPO generation batch, copied out of what TRL returned before TRL shuffles it.

TRL pads prompts on the left and completions on the right, fills missing log-probs with 0.0 and puts 0.0 on tool tokens;
here every row is cut to its real length and whatever was not measured becomes NaN, that is NULL in the run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from timscope.loggers.arrays import Array, copied

# The row tag carries the generation's number in its upper half: two generations may meet in one optimizer step.
_SHIFT = 32


@dataclass
class Seen:
    """What TRL's reward call got and gave: the exact ids, which padded tensors no longer tell apart from padding."""

    completion_ids: list[list[int]]
    rewards: Any


@dataclass
class Generation:
    """B rows of one generation batch on this rank. Token columns are lists of B float arrays, one value a token."""

    number: int
    label: str
    base: int
    weight_version: int
    prompt_ids: list[Array]
    completion_ids: list[Array]
    columns: dict[str, list[Array]] = field(default_factory=dict)
    per_row: dict[str, list[Any]] = field(default_factory=dict)
    rewards: dict[str, list[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.completion_ids)

    def attended(self, row: int) -> Array:
        """Which tokens the trainer's forward saw: all, or none where TRL masked a truncated completion."""
        return self.columns["attended"][row].astype(bool)


def row_tags(generation: int, rows: int) -> list[int]:
    """The tags of a generation's rows, to ride along in TRL's batch."""
    return [(generation << _SHIFT) + row for row in range(rows)]


def untag(tag: int) -> tuple[int, int]:
    """(generation, row) of a tag."""
    return tag >> _SHIFT, tag & ((1 << _SHIFT) - 1)


def read_generation(trainer: Any, out: dict[str, Any], seen: Seen, number: int, label: str) -> Generation:
    """Copy a generation out of `_generate_and_score_completions`' result `out` (unshuffled) and the rewards `seen`.

    `number` counts generations in this process; `label` names one in the whole run, over resumes.
    """
    ids = [np.array(row, np.int32) for row in seen.completion_ids]
    rank, rows = trainer.accelerator.process_index, len(ids)
    prompt_block, prompt_mask = copied(out["prompt_ids"]), copied(out["prompt_mask"]).astype(bool)
    attended = copied(out["completion_mask"]).astype(bool)
    in_loss = attended & copied(out["tool_mask"]).astype(bool) if "tool_mask" in out else attended
    version = trainer._last_loaded_step if trainer.use_vllm else trainer.state.global_step
    generation = Generation(
        number=number,
        label=label,
        base=rank * rows,
        weight_version=int(version),
        prompt_ids=[row[keep].astype(np.int32) for row, keep in zip(prompt_block, prompt_mask, strict=True)],
        completion_ids=ids,
    )

    def cut(block: Array, valid: Array | None = None) -> list[Array]:
        block = np.broadcast_to(block, attended.shape).astype(np.float64)
        if valid is not None:
            block = np.where(valid, block, np.nan)
        return [row[: len(i)].copy() for row, i in zip(block, ids, strict=True)]

    tool = copied(out["tool_mask"]).astype(bool) if "tool_mask" in out else None
    generation.columns = {"attended": cut(attended), "mask": cut(in_loss)}
    for name, key, valid in (
        ("rollout_logprob", "sampling_per_token_logps", tool),  # TRL writes 0.0 for tool tokens: nobody sampled them
        ("old_logprob", "old_per_token_logps", attended),
        ("ref_logprob", "ref_per_token_logps", attended),
        ("rollout_is_weight", "importance_sampling_ratio", in_loss),  # (B, C) or (B, 1), already clamped or masked
    ):
        if out.get(key) is not None:
            generation.columns[name] = cut(copied(out[key]), valid)
    _read_rows(trainer, generation, out, prompt_mask, attended)
    _read_rewards(trainer, generation, seen.rewards)
    return generation


def _read_rows(trainer: Any, generation: Generation, out: dict[str, Any], prompt_mask: Array, attended: Array) -> None:
    ids = generation.completion_ids
    count, base = trainer.num_generations, generation.base
    generation.per_row = {
        "advantage": copied(out["advantages"]).astype(float).tolist() if out["advantages"].ndim == 1 else [],
        "uid": [f"{generation.label}-{base + row:05d}" for row in range(len(ids))],
        "group_id": [f"{generation.label}-{(base + row) // count:05d}" for row in range(len(ids))],
        "pad_left": (~prompt_mask).sum(1).tolist(),
        "pad_right": [attended.shape[1] - len(i) for i in ids],
        "finish_reason": [_finish(i, trainer.eos_token_ids, trainer.max_completion_length) for i in ids],
    }
    if out["advantages"].ndim == 2:  # subclasses may give one a token
        block = copied(out["advantages"])
        generation.columns["advantage"] = [row[: len(i)] for row, i in zip(block, ids, strict=True)]
        del generation.per_row["advantage"]


def _finish(ids: Array, eos: list[int], limit: int) -> str | None:
    if len(ids) and int(ids[-1]) in eos:
        return "eos"
    return "length" if len(ids) >= limit else "stop"


def _read_rewards(trainer: Any, generation: Generation, gathered: Any) -> None:
    """This rank's rows of the gathered (B_global, functions) rewards; NaN where a function returned None."""
    block = copied(gathered)[generation.base : generation.base + len(generation)].astype(np.float64)
    weights = copied(trainer.reward_weights).astype(np.float64)
    total = np.nansum(block * weights, axis=1)
    total[np.isnan(block).all(axis=1)] = np.nan
    generation.per_row["reward"] = total.tolist()
    generation.rewards = {name: block[:, i].tolist() for i, name in enumerate(trainer.reward_func_names)}
