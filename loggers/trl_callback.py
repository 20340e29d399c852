"""The callback that tells the hook where optimizer steps begin and end, and brings the metrics that TRL logs."""

from __future__ import annotations

from typing import Any

from timscope.loggers.trl_gradients import SHARDED
from timscope.loggers.trl_hooks import Hooks
from timscope.loggers.weights import weights_digest

# The summary that Trainer logs after the last step is about the run, not about a step.
_SUMMARY = ("train_runtime", "train_loss")


def make_callback(hooks: Hooks, *, digest: bool, source: str | None) -> Any:
    """A TrainerCallback over `hooks`. Made in a function because transformers is only imported where it is used."""
    from transformers import TrainerCallback

    recorder, guard = hooks.recorder, hooks.guard

    class _StepCallback(TrainerCallback):  # type: ignore[misc]
        """Opens a step at its first micro-batch and completes it when the next begins: its metrics come in between."""

        open_step: int | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if hooks.finished:
                return
            with guard.column("weights"):
                model = hooks.trainer.accelerator.unwrap_model(hooks.trainer.model)
                value = weights_digest(model) if digest and _whole(model) else None
                recorder.add_weights(int(state.global_step), value, source if state.global_step == 0 else None)
                recorder.weights(int(state.global_step), model)

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if not hooks.finished:
                self._complete()
                hooks.begin_step()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if hooks.finished:
                return
            self.open_step = int(state.global_step)
            with guard.column("step"):
                hooks.end_step(self.open_step)
            with guard.column("weights"):
                recorder.weights(self.open_step, hooks.trainer.accelerator.unwrap_model(hooks.trainer.model))

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if self.open_step is None or not logs or any(name in logs for name in _SUMMARY):
                return
            # Logged every few steps, TRL's loss is a mean over them; the step's own is known already.
            own = {"loss", "grad_norm"} if args.logging_steps > 1 else set()
            step = recorder.begin(self.open_step)
            with guard.column("steps"):
                step.metrics({k: v for k, v in logs.items() if k not in own and _is_number(v)})

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self._complete()
            hooks.finished = True
            recorder.close()

        def _complete(self) -> None:
            if self.open_step is not None:
                recorder.complete(self.open_step)
                self.open_step = None

    def _whole(model: Any) -> bool:
        """Whether this process holds every weight as trained: a digest of shards or adapters would prove nothing."""
        kind = str(getattr(hooks.trainer.accelerator.distributed_type, "value", "NO"))
        return recorder.rank == 0 and not hasattr(model, "peft_config") and kind not in SHARDED

    return _StepCallback()


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
