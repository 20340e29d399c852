"""The callback for SkyRL: `RayPPOTrainer(..., callbacks=[TimscopeCallback("runs/a")])`.

SkyRL drops rewards and prompt uids from the batch, and scales the advantages for its loss, before it calls back; all
three are taken when `compute_advantages_and_returns` returns. Steps are numbered as SkyRL does, from 1. The class is
made when it is first asked for, because its base is SkyRL's and SkyRL may not be installed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from typing import Any

from timscope.loggers.adapters.calls import Arguments, watch
from timscope.loggers.adapters.config import scalars, standard
from timscope.loggers.adapters.session import session
from timscope.loggers.adapters.skyrl_batch import Scored, read_rows
from timscope.loggers.adapters.skyrl_facts import STEP_COLUMNS, describe


class _Events:
    """The events that are listened to; the others are SkyRL's own empty ones."""

    def __init__(self, run_dir: str | os.PathLike[str] | None = None, **options: Any) -> None:
        """`run_dir`: where to record, by default `TIMSCOPE_RUN`; without either nothing is recorded. `options` go to
        `Recorder`."""
        self._path, self._options = run_dir, options
        self._scored = Scored()
        self._undo: Callable[[], None] | None = None
        self._last: int | None = None

    def on_train_start(self, trainer: Any, callback_input: Any, control: Any) -> None:
        """Opens the run and begins to watch this trainer's advantages."""

        def scored(call: Arguments, result: Any) -> None:
            self._scored = Scored.of(result)

        def start() -> None:
            opened = session().open("skyrl", partial(describe, trainer), path=self._path, **self._options)
            if opened is not None:
                self._undo = watch(trainer, "compute_advantages_and_returns", after=scored)

        session().attempt("skyrl", start)

    def on_step_end(self, trainer: Any, callback_input: Any, control: Any) -> None:
        """The optimizer has stepped: takes the step's rows."""
        session().attempt("rollout", partial(self._rows, trainer, callback_input))

    def _rows(self, trainer: Any, said: Any) -> None:
        recorder, scored, self._scored = session().recorder, self._scored, Scored()
        if recorder is None:
            return
        self._last = number = int(said.global_step)
        step = recorder.begin(number)
        step.ended = True
        metrics = {f"policy/{name}": value for name, value in scalars(said.metrics).items()}
        step.metrics({**metrics, **standard(metrics, STEP_COLUMNS)}, weight_version=number - 1)
        read_rows(step, said.batch, scored, number - 1 if _in_step(trainer) else None)

    def on_log(self, trainer: Any, callback_input: Any, control: Any) -> None:
        """The step's metrics are complete, and with them the step. Other logs, of evaluations, are none of ours."""
        session().attempt("steps", partial(self._metrics, callback_input.logs))

    def _metrics(self, logs: Mapping[str, Any] | None) -> None:
        recorder, number, self._last = session().recorder, self._last, None
        if recorder is not None and number is not None:
            metrics = scalars(logs)
            recorder.begin(number).metrics({**metrics, **standard(metrics, STEP_COLUMNS)})
            recorder.complete(number)

    def on_train_end(self, trainer: Any, callback_input: Any, control: Any) -> None:
        """Closes the run and leaves the trainer as it was."""
        undo, self._undo = self._undo, None
        if undo is not None:
            session().attempt("skyrl", undo)
        session().attempt("close", session().close)


def _in_step(trainer: Any) -> bool:
    """Whether this is SkyRL's own loop, which generates with the weights of the step before; others may lag."""
    return getattr(type(trainer).train, "__module__", None) == "skyrl.train.trainer"


@cache
def _callback_class() -> type:
    try:
        bases: tuple[type, ...] = (_Events, import_module("skyrl.train.utils.callbacks").TrainingCallback)
    except ImportError:
        bases = (_Events,)
    return type("TimscopeCallback", bases, {"__doc__": __doc__, "__module__": __name__})


def __getattr__(name: str) -> Any:
    if name == "TimscopeCallback":
        return _callback_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
