"""The wraps around one trainer and what they gather between two optimizer steps.

On the training thread a wrap snapshots tensors (pinned.py) and keeps references, nothing else; rows, texts and files
are made on the writer's thread. Every line of the hook's own runs inside a guard.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from timscope.loggers.patches import Patches
from timscope.loggers.pinned import Snapshot, hold
from timscope.loggers.recorder import Recorder
from timscope.loggers.trl_gradients import TrainerGradients
from timscope.loggers.trl_rollout import Generation, Seen, row_tags
from timscope.loggers.trl_step import MicroBatch, fill_step
from timscope.loggers.trl_texts import Texts

Method = Callable[..., Any]
TAG = "_row"


class Hooks:
    """State of one attached trainer."""

    def __init__(self, trainer: Any, recorder: Recorder, *, gradients: TrainerGradients | None, texts: bool) -> None:
        self.trainer, self.recorder, self.guard = trainer, recorder, recorder.guard
        self.gradients, self.texts = gradients, None
        if texts:
            with self.guard.column("texts"):
                self.texts = Texts(getattr(trainer, "_tokenizer", None) or trainer.processing_class)
        self.patches = Patches()
        # RLOO's loss is the mean of a micro-batch, which Trainer divides by the accumulation; GRPO's is scaled already.
        self.averaged = any(c.__name__ == "RLOOTrainer" for c in type(trainer).__mro__)
        self.generation: Generation | None = None
        self.count = 0
        self.last_step, self.in_step = -1, 0
        self.seen: Seen | None = None
        self.inside: list[Snapshot] | None = None
        self.micro: list[MicroBatch] = []
        self.groups: Any = None
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
        if trainer.use_vllm and hasattr(trainer.vllm_generation, "generate"):
            self.patches.wrap(trainer.vllm_generation, "generate", self._engine)

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
            self.seen = Seen() if self.training and self.guard.on("rollout") else None
            try:
                out = original(*args, **kwargs)
                if self.seen is not None:
                    with self.guard.column("rollout"):
                        self._keep(out, self.seen)
            finally:
                self.seen = None
            return out

        return generate

    def _keep(self, out: dict[str, Any], seen: Seen) -> None:
        step = int(self.trainer.state.global_step)
        self.in_step = self.in_step + 1 if step == self.last_step else 0
        self.last_step = step
        label = f"{step:06d}.{self.in_step}"
        generation = Generation(self.trainer, out, seen, self.count, label, self.guard, self.texts)
        out[TAG] = row_tags(self.count, len(generation), out["completion_ids"].device)
        self.generation = generation
        self.count += 1

    def _engine(self, original: Method) -> Method:
        def generate(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if self.seen is not None and self.seen.engine_prompts is None:  # later turns only continue these prompts
                with self.guard.column("engine_prompt_ids"):
                    self.seen.engine_prompts = result[0]
            return result

        return generate

    def _rewards(self, original: Method) -> Method:
        def rewards(inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
            if self.seen is not None:
                with self.guard.column("rollout"):  # before a reward function can change the lists
                    self.seen.lengths = [len(ids) for ids in completion_ids_list]
            result = original(inputs, prompts, completions, completion_ids_list)
            if self.seen is not None:
                with self.guard.column("rollout"):
                    self.seen.rewards = Snapshot({"rewards": result})
            return result

        return rewards

    def _score(self, original: Method) -> Method:
        def score(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            with self.guard.column("loss_logprob"):
                if self.inside is not None and result[0].requires_grad:
                    self.inside.append(Snapshot({"logps": result[0], "entropies": result[1]}))
                elif self.seen is not None:
                    self.seen.scored.append(result[0])
            return result

        return score

    def _loss(self, original: Method) -> Method:
        def loss(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if not (self.training and TAG in inputs):
                return original(model, inputs, *args, **kwargs)
            forward: list[Snapshot] = []
            self.inside = forward
            try:
                result = original(model, inputs, *args, **kwargs)
            finally:
                self.inside = None
            with self.guard.column("loss_logprob"):
                if self.generation is not None:
                    said = Snapshot({"tags": inputs[TAG], "loss": result})
                    self.micro.append(MicroBatch(self.generation, said, forward[-1] if forward else None))
            return result

        return loss

    def _clip(self, original: Method) -> Method:
        def clip(*args: Any, **kwargs: Any) -> Any:
            if self.removed:
                return original(*args, **kwargs)
            if self.gradients is not None and self.recorder.rank == 0 and self.guard.on("gradients"):
                with self.guard.column("gradients"):
                    self.groups = self.gradients.take()
            norm = original(*args, **kwargs)
            with self.guard.column("steps.grad_norm"):
                self.grad_norm = hold(norm)
            return norm

        return clip

    # --- step boundaries ------------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """An optimizer step starts: forget what an unfinished one left."""
        self.micro, self.groups, self.grad_norm = [], None, None
        self.started = time.perf_counter()

    def end_step(self, number: int) -> None:
        """The optimizer has stepped: hand what was gathered to the writer as step `number`."""
        step = self.recorder.begin(number)
        step.metrics(time_s=time.perf_counter() - self.started, weight_version=number - 1, grad_norm=self.grad_norm)
        if self.groups is not None:
            step.gradients(self.groups)
        if self.guard.on("rollout"):
            step.later(partial(self._fill, self.micro))
            step.tokens = sum(g.tokens for g in {m.generation for m in self.micro})
        step.ended = True
        self.micro, self.groups, self.grad_norm = [], None, None

    def _fill(self, micro: list[MicroBatch], step: Any) -> None:
        with self.guard.column("rollout"):
            fill_step(step, micro, self.averaged)
