"""The wraps around one GRPOTrainer and what they gather between two optimizer steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from timscope.loggers.arrays import copied
from timscope.loggers.gradients import gradient_groups
from timscope.loggers.patches import Patches
from timscope.loggers.recorder import Recorder
from timscope.loggers.trl_rollout import Generation, Seen, read_generation, row_tags
from timscope.loggers.trl_step import MicroBatch, fill_step

Method = Callable[..., Any]
TAG = "_row"
# Kinds of distributed training in which a rank holds shards of weights and gradients.
SHARDED = ("FSDP", "DEEPSPEED", "MEGATRON_LM")


@dataclass
class _Scores:
    """What the loss's forward said: device copies, moved to the host once a step."""

    logps: Any = None
    entropies: Any = None


class Hooks:
    """State of one attached trainer. Everything that runs inside a wrap is guarded."""

    def __init__(self, trainer: Any, recorder: Recorder, *, gradients: bool, texts: bool) -> None:
        self.trainer, self.recorder, self.guard = trainer, recorder, recorder.guard
        self.with_gradients, self.with_texts = gradients, texts
        self.patches = Patches()
        self.generations: dict[int, Generation] = {}
        self.count = 0
        self.last_step, self.in_step = -1, 0
        self.seen: Seen | None = None
        self.inside: _Scores | None = None
        self.micro: list[MicroBatch] = []
        self.groups: dict[str, dict[str, float]] = {}
        self.grad_norm: Any = None
        self.started = time.perf_counter()
        self.removed = False
        self.finished = False  # training has ended: the callback stays in TRL's list but does nothing

    def install(self) -> None:
        """Wrap the trainer's methods."""
        trainer = self.trainer
        self.patches.wrap(trainer, "_generate_and_score_completions", self._generate)
        self.patches.wrap(trainer, "_calculate_rewards", self._rewards)
        self.patches.wrap(trainer, "_get_per_token_logps_and_entropies", self._score)
        self.patches.wrap(trainer, "_compute_loss", self._loss)
        self.patches.wrap(trainer.accelerator, "clip_grad_norm_", self._clip)
        kind = str(getattr(trainer.accelerator.distributed_type, "value", "NO"))
        if self.with_gradients and kind in SHARDED:
            self.guard.turn_off("gradients", f"under {kind} a rank holds shards, so only the total norm is recorded")

    def remove(self) -> None:
        """Restore the trainer's methods; a wrap that somebody wrapped over stays and only passes through."""
        self.removed = True
        self.patches.restore()

    @property
    def training(self) -> bool:
        """Evaluation goes through the same methods and is not recorded."""
        return not self.removed and bool(self.trainer.model.training)

    # --- wraps ----------------------------------------------------------------------------------------------------

    def _generate(self, original: Method) -> Method:
        def generate(*args: Any, **kwargs: Any) -> Any:
            self.seen = None
            out = original(*args, **kwargs)
            if self.training and self.guard.on("rollout"):
                with self.guard.column("rollout"):
                    self._keep(out)
            return out

        return generate

    def _keep(self, out: dict[str, Any]) -> None:
        import torch

        if self.seen is None:
            raise RuntimeError("TRL did not call _calculate_rewards")
        step = int(self.trainer.state.global_step)
        self.in_step = self.in_step + 1 if step == self.last_step else 0
        self.last_step = step
        generation = read_generation(self.trainer, out, self.seen, self.count, f"{step:06d}.{self.in_step}")
        if self.with_texts:
            tokenizer = getattr(self.trainer, "_tokenizer", None) or self.trainer.processing_class
            generation.per_row["prompt"] = tokenizer.batch_decode([p.tolist() for p in generation.prompt_ids])
            generation.per_row["completion"] = tokenizer.batch_decode([c.tolist() for c in generation.completion_ids])
        device = out["completion_ids"].device
        tags = torch.tensor(row_tags(self.count, len(generation)), dtype=torch.int64, device=device)
        used = {m.generation for m in self.micro}
        self.generations = {n: g for n, g in self.generations.items() if n in used}
        self.generations[self.count] = generation
        out[TAG] = tags
        self.count += 1

    def _rewards(self, original: Method) -> Method:
        def rewards(inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
            result = original(inputs, prompts, completions, completion_ids_list)
            with self.guard.column("rollout"):
                self.seen = Seen([list(ids) for ids in completion_ids_list], copied(result))
            return result

        return rewards

    def _score(self, original: Method) -> Method:
        def score(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if self.inside is not None and result[0].requires_grad:
                with self.guard.column("loss_logprob"):
                    self.inside.logps = result[0].detach().clone()
                    self.inside.entropies = None if result[1] is None else result[1].detach().clone()
            return result

        return score

    def _loss(self, original: Method) -> Method:
        def loss(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if not (self.training and TAG in inputs):
                return original(model, inputs, *args, **kwargs)
            self.inside = scores = _Scores()
            try:
                result = original(model, inputs, *args, **kwargs)
            finally:
                self.inside = None
            with self.guard.column("loss_logprob"):
                self.micro.append(MicroBatch(inputs[TAG], scores.logps, scores.entropies, result.detach().clone()))
            return result

        return loss

    def _clip(self, original: Method) -> Method:
        def clip(*args: Any, **kwargs: Any) -> Any:
            if self.removed:
                return original(*args, **kwargs)
            if self.with_gradients and self.recorder.rank == 0 and self.guard.on("gradients"):
                with self.guard.column("gradients"):
                    scaler = getattr(self.trainer.accelerator, "scaler", None)
                    scale = scaler.get_scale() if scaler is not None else 1.0
                    self.groups = gradient_groups(self.trainer.model.named_parameters(), scale)
            norm = original(*args, **kwargs)
            with self.guard.column("steps.grad_norm"):
                self.grad_norm = norm.detach().clone() if hasattr(norm, "detach") else norm
            return norm

        return clip

    # --- step boundaries ------------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """An optimizer step starts: forget what an unfinished one left."""
        self.micro, self.groups, self.grad_norm = [], {}, None
        self.started = time.perf_counter()

    def end_step(self, number: int) -> None:
        """The optimizer has stepped: turn what was gathered into the rows of step `number`."""
        step = self.recorder.begin(number)
        step.metrics(time_s=time.perf_counter() - self.started, weight_version=number - 1, grad_norm=self.grad_norm)
        if self.groups:
            step.gradients(self.groups)
        if self.guard.on("rollout"):
            with self.guard.column("rollout"):
                fill_step(step, self.micro, self.generations)
        self.micro = []
