"""One generation batch of TRL, taken as it is returned and before TRL shuffles it.

On the training thread tensors are snapshotted and lists kept by reference; `Generation.batch` does the rest on the
writer's thread. TRL pads prompts on the left and completions on the right, fills missing log-probs with 0.0 and puts
0.0 on tool tokens; here those are masked, that is NULL in the run. A NaN on a sampled token stays: TRL turns what vLLM
gave as NaN into None and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from timscope.loggers.arrays import Array
from timscope.loggers.guard import Guard
from timscope.loggers.pinned import Snapshot
from timscope.loggers.trl_texts import Texts

# The row tag carries the generation's number in its upper half.
_SHIFT = 32
_TENSORS = (
    *("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask", "advantages", "old_logps"),
    *("sampling_per_token_logps", "old_per_token_logps", "ref_per_token_logps", "importance_sampling_ratio"),
)


@dataclass
class Seen:
    """What one generation let see on its way: the lengths of the completions, which a padded block no longer tells
    apart from padding; the rewards; the prompts as the engine reports them; the log-probs of forward passes."""

    lengths: list[int] | None = None
    rewards: Snapshot | None = None
    engine_prompts: Sequence[Sequence[int]] | None = None
    scored: list[Any] = field(default_factory=list)


@dataclass
class Batch:
    """B rows on the host. Token columns are (B, C), masked where nothing was measured; row columns have B entries."""

    prompt_ids: Array
    prompt_mask: Array
    completion_ids: Array
    real: Array
    attended: Array  # what the trainer's forward saw: all of a row, or nothing where TRL masked a truncated completion
    tokens: dict[str, Array]
    rows: dict[str, list[Any]]
    rewards: dict[str, list[Any]]


class Generation:
    """A generation batch of this rank. `number` counts them in this process, `label` names one in the whole run."""

    def __init__(
        self, trainer: Any, out: dict[str, Any], seen: Seen, number: int, label: str, guard: Guard, texts: Texts | None
    ) -> None:
        if seen.lengths is None or seen.rewards is None:
            raise RuntimeError("TRL did not call _calculate_rewards")
        self.number, self.label, self._lengths = number, label, np.array(seen.lengths, np.int64)
        self.base = int(trainer.accelerator.process_index) * len(self)
        self.tokens = int(self._lengths.sum())
        self.weight_version = int(trainer._last_loaded_step if trainer.use_vllm else trainer.state.global_step)
        self._rewards, self._engine_prompts = seen.rewards, seen.engine_prompts
        self._guard, self._texts = guard, texts
        self._group, self._eos = int(trainer.num_generations), list(trainer.eos_token_ids)
        self._limit, self._names = int(trainer.max_completion_length), list(trainer.reward_func_names)
        tensors = {name: out.get(name) for name in _TENSORS}
        if tensors["old_logps"] is not None:  # RLOO keeps sums: its passes for the old and the reference log-probs
            tensors.update(zip(("old_per_token_logps", "ref_per_token_logps"), seen.scored, strict=False))
        self._held = Snapshot({**tensors, "reward_weights": trainer.reward_weights})

    def __len__(self) -> int:
        return len(self._lengths)

    @cached_property
    def batch(self) -> Batch:
        """The rows on the host. ValueError where TRL's tensors contradict each other."""
        said = self._held.result()
        prompt_mask, attended = (said[name].astype(bool) for name in ("prompt_mask", "completion_mask"))
        real = np.arange(attended.shape[1]) < self._lengths[:, None]
        by_model = said["tool_mask"].astype(bool) if "tool_mask" in said else np.ones_like(real)
        batch = Batch(said["prompt_ids"], prompt_mask, said["completion_ids"], real, attended, {}, {}, {})
        batch.tokens["mask"] = attended & by_model
        for name, key, valid in (
            ("rollout_logprob", "sampling_per_token_logps", by_model),  # nobody sampled a tool's tokens
            ("old_logprob", "old_per_token_logps", attended),
            ("ref_logprob", "ref_per_token_logps", attended),
            ("rollout_is_weight", "importance_sampling_ratio", attended & by_model),  # (B, C) or (B, 1)
        ):
            if key in said:
                batch.tokens[name] = np.ma.array(np.broadcast_to(said[key], real.shape), mask=~valid)
        self._say_rows(batch, said)
        if "tool_mask" in said:
            sampled = by_model & real
            turns = sampled[:, 0] + (sampled[:, 1:] & ~sampled[:, :-1]).sum(1)
            batch.rows["turns"] = [int(n) or None for n in turns]
        if "old_logps" in said:
            self._check_sums(batch, said["old_logps"])
        self._say_rewards(batch, said["reward_weights"])
        self._say_texts(batch)
        return batch

    def _say_rows(self, batch: Batch, said: dict[str, Array]) -> None:
        number = [self.base + row for row in range(len(self))]
        last = batch.completion_ids[np.arange(len(self)), np.maximum(self._lengths - 1, 0)]
        ended = np.isin(last, self._eos) & (self._lengths > 0)
        batch.rows = {
            "uid": [f"{self.label}-{n:05d}" for n in number],
            "group_id": [f"{self.label}-{n // self._group:05d}" for n in number],
            "pad_left": (~batch.prompt_mask).sum(1).tolist(),
            "pad_right": (batch.real.shape[1] - self._lengths).tolist(),
            "finish_reason": [
                "eos" if done else "length" if length >= self._limit else "stop"
                for done, length in zip(ended, self._lengths, strict=True)
            ],
        }
        if said["advantages"].ndim == 1:
            batch.rows["advantage"] = said["advantages"].tolist()
        else:  # subclasses may give one a token
            batch.tokens["advantage"] = said["advantages"]
        if self._engine_prompts is not None and len(self._engine_prompts) == len(self):
            batch.rows["engine_prompt_ids"] = list(self._engine_prompts)

    def _check_sums(self, batch: Batch, sums: Array) -> None:
        """RLOO's loss takes the old log-probs summed over the sequence; the tokens seen must add up to them."""
        unseen: Array = np.all(~batch.attended, axis=1)
        nothing: list[bool] = unseen.tolist()
        batch.rows["old_logprob_sum"] = [None if no else float(s) for s, no in zip(sums, nothing, strict=True)]
        old = batch.tokens.get("old_logprob")
        if old is not None and not np.allclose(
            np.ma.filled(old, 0.0).sum(1), sums, rtol=1e-4, atol=1e-2, equal_nan=True
        ):
            del batch.tokens["old_logprob"]
            self._guard.turn_off("old_logprob", "the forward passes seen do not add up to the sums that TRL uses")

    def _say_rewards(self, batch: Batch, weights: Array) -> None:
        """This rank's rows of the gathered (B_global, functions) rewards; NaN is a function that returned None."""
        block = self._rewards.result()["rewards"][self.base : self.base + len(self)].astype(np.float64)
        total = np.nansum(block * weights.astype(np.float64), axis=1)
        silent: Array = np.isnan(block)
        unscored: list[bool] = np.all(silent, axis=1).tolist()
        batch.rows["reward"] = [None if no else float(t) for t, no in zip(total, unscored, strict=True)]
        for index, name in enumerate(self._names):
            column = zip(block[:, index], silent[:, index], strict=True)
            batch.rewards[name] = [None if no else float(value) for value, no in column]

    def _say_texts(self, batch: Batch) -> None:
        if self._texts is not None and self._guard.on("texts"):
            with self._guard.column("texts"):
                batch.rows["prompt"] = self._texts.decode(batch.prompt_ids, batch.prompt_mask)
                batch.rows["completion"] = self._texts.decode(batch.completion_ids, batch.real)


def row_tags(generation: int, rows: int, device: Any) -> Any:
    """The tags of a generation's rows (rows,) int64, made on the device, to ride along in TRL's batch."""
    import torch

    return torch.arange(rows, dtype=torch.int64, device=device) + (generation << _SHIFT)


def untag(tags: Array) -> tuple[Array, Array]:
    """(generation, row) of tags."""
    return tags >> _SHIFT, tags & ((1 << _SHIFT) - 1)
