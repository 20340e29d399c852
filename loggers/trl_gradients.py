"""Gradient statistics of a TRL trainer, taken before clipping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from timscope.loggers.gradients import gradient_groups
from timscope.loggers.pinned import hold, resolve
from timscope.loggers.sketch import SketchPlan

# Kinds of distributed training in which a rank holds shards of weights and gradients.
SHARDED = ("FSDP", "DEEPSPEED", "MEGATRON_LM")


def sketch_plan(sketch: bool | int) -> SketchPlan | None:
    """The plan that `attach(sketch=...)` means: False none, True the default, a number that many buckets."""
    if sketch is False or sketch == 0:
        return None
    return SketchPlan() if sketch is True else SketchPlan(buckets=int(sketch))


class TrainerGradients:
    """Statistics of `trainer`'s gradients, with a sketch where there is a plan."""

    def __init__(self, trainer: Any, plan: SketchPlan | None = None) -> None:
        self._trainer, self._plan = trainer, plan

    def take(self) -> Any:
        """The statistics of the gradients as they are now, behind a `result()`. Nothing waits for the device."""
        said = gradient_groups(self._trainer.model.named_parameters(), sketch=self._plan)
        # Mixed fp16 training scales the loss; reading the scale would wait for the device, so it is divided out later.
        scale = getattr(getattr(self._trainer.accelerator, "scaler", None), "_scale", None)
        return said if scale is None else _Unscaled(said, hold(scale))


class _Unscaled:
    """Statistics divided by the loss scale they were taken under: a power of two, so nothing is rounded."""

    def __init__(self, said: Any, scale: Any) -> None:
        self._said, self._scale = said, scale

    def result(self) -> dict[str, dict[str, Any]]:
        """The statistics, by group."""
        groups: Mapping[str, Mapping[str, Any]] = self._said.result()
        scale = float(resolve(self._scale))
        linear = ("norm", "max_abs", "sketch")
        return {
            group: {k: v / scale if k in linear and v is not None else v for k, v in said.items()}
            for group, said in groups.items()
        }
