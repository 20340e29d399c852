"""The hook for TRL's GRPOTrainer and RLOOTrainer: `attach(trainer, "runs/a")`, then train as before.

Methods of this one trainer are wrapped and a callback is added; nothing is subclassed or patched in TRL, no random
number is drawn, no tensor of the trainer is written to, and nothing waits for the device. The only thing that TRL can
see is one more int64 tensor in its batch, the row tags, which TRL shuffles and splits along with the rest and so tells
which loss row is which rollout.

    generate          _generate_and_score_completions   rollout and old log-probs, masks, advantages
    rewards           _calculate_rewards                rewards by function, lengths of the completions
    engine            vllm_generation.generate          the prompts as the engine reports them
    score             _get_per_token_logps_and_entropies   inside the loss: the trainer's own log-probs and entropies
    loss              _compute_loss                     which rows, in which micro-batch
    clip              accelerator.clip_grad_norm_       gradients before clipping

Steps are numbered as TRL logs them, from 1; a token row is written for every optimizer step whose loss used it, so
with `num_iterations=2` a rollout appears in two steps under one uid. `steps.weight_version` is the version being
trained (the step before), so staleness is that minus the rollout's `weight_version`.

RLOO keeps the old log-probs as a sum over the sequence: that is `sequences.old_logprob_sum`, and `old_logprob` holds
the tokens of the forward pass that was summed. It asks its engine for no log-probs, so `rollout_logprob` is NULL.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from timscope.loggers.recorder import NullRecorder, Recorder
from timscope.loggers.sketch import SketchPlan
from timscope.loggers.trl_callback import make_callback
from timscope.loggers.trl_facts import describe
from timscope.loggers.trl_gradients import SHARDED, TrainerGradients, sketch_plan
from timscope.loggers.trl_hooks import Hooks


def attach(
    trainer: Any,
    run_dir: str | os.PathLike[str] | None,
    *,
    model_source: str | None = None,
    digest: bool = True,
    gradients: bool = True,
    sketch: bool | int = True,
    snapshots: Any = "digest",
    texts: bool = True,
    strict: bool = False,
    **options: Any,
) -> Recorder:
    """Record a `trl.GRPOTrainer` or `trl.RLOOTrainer` into `run_dir`; returns the recorder. `recorder.close()` takes
    the hook off again; the end of training does so by itself.

    `run_dir`: a directory or fsspec URL; None records nothing. `model_source`: where anyone can get the initial weights
    (by default the model's name), so that the run can be replayed. `digest`: hash the weights when training begins, so
    that a replay can prove it has the same ones. `gradients`: statistics by module before clipping; `sketch`: with a
    count-sketch of each (a number: that many buckets). `snapshots`: what is kept of every later version of the weights,
    see snapshots.py. `texts`: prompts and completions as text next to their ids. `strict`: raise hook errors (default:
    log once, turn the column off). `options` go to `Recorder` (`queue_size`, `overflow`) and the manifest.
    """
    if run_dir is None:
        return NullRecorder()
    facts = _facts(trainer, model_source, strict)
    accelerator = trainer.accelerator
    place = {"rank": accelerator.process_index, "world_size": accelerator.num_processes}
    plan = sketch_plan(sketch) if gradients else None
    if plan is not None:
        facts["sketch"] = plan.manifest()
    recorder = _TrlRecorder(run_dir, strict=strict, snapshots=snapshots, **{**place, **facts, **options})
    hooks = Hooks(trainer, recorder, gradients=_gradients(trainer, recorder, gradients, plan), texts=texts)
    source = model_source or facts.get("model", {}).get("source")
    callback = make_callback(hooks, digest=digest, source=source)
    with recorder.guard.column("attach"):
        hooks.install()
        trainer.add_callback(callback)

    def undo() -> None:
        hooks.remove()
        if not hooks.finished:  # at the end of training TRL is iterating over its callbacks: leave the list alone
            trainer.remove_callback(callback)

    recorder.on_close = undo
    return recorder


def _gradients(trainer: Any, recorder: Recorder, wanted: bool, plan: SketchPlan | None) -> TrainerGradients | None:
    kind = str(getattr(trainer.accelerator.distributed_type, "value", "NO"))
    if wanted and kind in SHARDED:
        recorder.guard.turn_off("gradients", f"under {kind} a rank holds shards, so only the total norm is recorded")
    return TrainerGradients(trainer, plan) if wanted else None


def _facts(trainer: Any, model_source: str | None, strict: bool) -> dict[str, Any]:
    """The manifest fields; a trainer too unusual to describe is still recorded."""
    try:
        return describe(trainer, model_source)
    except Exception as error:
        if strict:
            raise
        return {"framework": "trl", "environment": {"describe_error": f"{type(error).__name__}: {error}"}}


class _TrlRecorder(Recorder):
    """A recorder whose `close` also restores the trainer's methods."""

    on_close: Callable[[], object] | None = None

    def close(self) -> None:
        """Take the hook off, write what is left and end the writer's thread."""
        if self.on_close is not None:
            undo, self.on_close = self.on_close, None
            with self.guard.column("detach"):
                undo()
        super().close()
