"""The run of this process: opened at the first step, when the framework's configuration is known.

Frameworks call these hooks without handing them anything of ours, so the environment says what to do:

    TIMSCOPE_RUN=/data/runs/a                    directory or fsspec URL; without it every hook does nothing
    TIMSCOPE_OPTIONS={"overflow": "drop"}        options of `Recorder`, as a JSON object
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from timscope.loggers.guard import Guard
from timscope.loggers.recorder import Recorder

RUN, OPTIONS = "TIMSCOPE_RUN", "TIMSCOPE_OPTIONS"


def run_path() -> str | None:
    """Where to record, or None: nothing is asked for."""
    return os.environ.get(RUN) or None


def run_options() -> dict[str, Any]:
    """`TIMSCOPE_OPTIONS` as a dict; ValueError where it is no JSON object."""
    try:
        options = json.loads(os.environ.get(OPTIONS) or "{}")
    except json.JSONDecodeError as error:
        raise ValueError(f"{OPTIONS} is not JSON ({error}): write a JSON object") from error
    if not isinstance(options, dict):
        raise ValueError(f"{OPTIONS} must be a JSON object, not {type(options).__name__}")
    return options


class Session:
    """At most one recorder a process, made when first asked for; it closes itself at the end of the process."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self._guard = Guard()  # for what goes wrong before there is a recorder
        self._given_up = False

    def open(
        self,
        framework: str,
        describe: Callable[[], Mapping[str, Any]],
        *,
        path: str | os.PathLike[str] | None = None,
        rank: int = 0,
        world_size: int = 1,
        **options: Any,
    ) -> Recorder | None:
        """The recorder, or None where nothing is to be recorded.

        `describe()` gives manifest fields; a job too unusual to describe is still recorded under `framework`'s name.
        `path` and `options` go before the environment's. `rank` of `world_size`: this process's share of the batch.
        Raises only with the option `strict`.
        """
        path = path or run_path()
        if self.recorder is None and not self._given_up and path:
            self._given_up = True  # until it has worked
            options = {**run_options(), **options}
            self._guard.strict = bool(options.get("strict"))
            fields = {**_described(framework, describe, self._guard.strict), **options}
            self.recorder = Recorder(path, rank=rank, world_size=world_size, **fields)
            self._given_up = False
        return self.recorder

    def attempt(self, name: str, job: Callable[[], object]) -> None:
        """Run a hook's `job`. An error is logged once under `name`, goes no further, and `job` is not run again."""
        guard = self._guard if self.recorder is None else self.recorder.guard
        if guard.on(name):
            with guard.column(name):
                job()

    def close(self) -> None:
        """Write what is left. The next `open` resumes the run."""
        recorder, self.recorder = self.recorder, None
        if recorder is not None:
            recorder.close()


def _described(framework: str, describe: Callable[[], Mapping[str, Any]], strict: bool) -> dict[str, Any]:
    try:
        return dict(describe())
    except Exception as error:
        if strict:
            raise
        return {"framework": framework, "environment": {"describe_error": f"{type(error).__name__}: {error}"}}


_session = Session()


def session() -> Session:
    """The session of this process."""
    return _session
