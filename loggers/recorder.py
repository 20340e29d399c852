"""The framework-free recorder: any training loop writes a run with it, in about five lines a step.

    recorder = Recorder("runs/a", framework="mine", sampling={"temperature": 1.0})
    with recorder.step(7) as step:
        step.rollout(prompt_ids=p, completion_ids=c, rollout_logprob=r, weight_version=7)
        step.trainer(old_logprob=t, loss_logprob=n, entropy=h, mask=m)
        step.scores(advantage=a, rewards={"exact": e})
        step.metrics(loss=loss, grad_norm=norm)

It copies what it is given, hands it to the writer's thread and never raises into the loop (see guard.py). With no path
it records nothing, so a loop needs no `if`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from timscope.data import Manifest, RunWriter
from timscope.data.manifest import WeightVersion
from timscope.loggers.bundle import Step
from timscope.loggers.guard import Guard

# Manifest fields that may be given as a bare name.
_NAMED = ("framework", "model", "tokenizer", "rollout", "trainer", "algorithm")


class Recorder:
    """Records a run. One object a process; `rank` and `world_size` say which share of the batch it sees.

    `path`: directory or fsspec URL, None to record nothing. `fields`: top-level manifest fields (see data/manifest.py);
    framework, model, tokenizer, rollout, trainer and algorithm may be a bare name. `overflow`: what to do when the disk
    is too slow, "block" or "drop" (counted). Raises only where `strict` is set.
    """

    def __new__(cls, path: str | os.PathLike[str] | None = None, **_options: Any) -> Recorder:
        """A `NullRecorder` where there is no path."""
        return super().__new__(NullRecorder if path is None else cls)

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        rank: int = 0,
        world_size: int = 1,
        queue_size: int = 256,
        overflow: Literal["block", "drop"] = "block",
        strict: bool = False,
        **fields: Any,
    ) -> None:
        self.path, self.rank, self.world_size = path, rank, world_size
        self.guard = Guard(strict, self._note)
        self._open: dict[int, Step] = {}
        self._early: list[str] = []
        self._writer: RunWriter | None = None
        with self.guard.column("run"):
            named = {k: {"name": v} if k in _NAMED and isinstance(v, str) else v for k, v in fields.items()}
            from timscope import __version__

            manifest = Manifest.model_validate({"timscope_version": __version__, **named})
            assert path is not None
            place: dict[str, Any] = {"rank": rank, "world_size": world_size}
            self._writer = RunWriter(path, manifest, queue_size=queue_size, overflow=overflow, strict=strict, **place)

    @property
    def manifest(self) -> Manifest:
        """The manifest as it stands."""
        return self._writer.manifest if self._writer else Manifest()

    @property
    def errors(self) -> list[str]:
        """What went wrong so far: hook errors and write errors."""
        return list(self._writer.errors) if self._writer else [*self._early]

    def begin(self, number: int) -> Step:
        """Step `number`, open: the same object until `complete`. Steps may overlap."""
        if number not in self._open:
            self._open[number] = Step(number, self.guard, self.rank, self.world_size)
        return self._open[number]

    @contextmanager
    def step(self, number: int) -> Iterator[Step]:
        """Step `number` for the block; completed at its end, left incomplete if the block raises."""
        bundle = self.begin(number)
        yield bundle
        self.complete(number)

    def complete(self, number: int) -> None:
        """Write what step `number` holds and mark it finished. Does nothing for a step that was never begun."""
        if number in self._open:
            self._flush(self._open.pop(number), finished=True)

    def _flush(self, bundle: Step, finished: bool) -> None:
        if self._writer is None:
            return
        with self.guard.column("write"):
            for name, columns in bundle.tables().items():
                if columns:
                    self._writer.put(name, bundle.number, columns)
            if finished:
                self._writer.complete(bundle.number)

    def update_manifest(self, **fields: Any) -> None:
        """Replace top-level manifest fields (rank 0 writes)."""
        if self._writer is not None:
            with self.guard.column("manifest"):
                self._writer.update_manifest(**fields)

    def add_weights(self, version: int, digest: str | None = None, source: str | None = None) -> None:
        """Say which weights a version is: `digest` from `timscope.data.digest`, `source` where to get them."""
        kept = [w for w in self.manifest.weights if w.version != version]
        self.update_manifest(weights=[*kept, WeightVersion(version=version, digest=digest, source=source)])

    def close(self) -> None:
        """Write what is left (open steps stay incomplete) and end the writer's thread. Safe to call twice."""
        for number in list(self._open):
            self._flush(self._open.pop(number), finished=False)
        if self._writer is not None:
            with self.guard.column("close"):
                self._writer.close()

    def _note(self, message: str) -> None:
        errors = self._early if self._writer is None else self._writer.errors
        if message not in errors:
            errors.append(message)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class NullRecorder(Recorder):
    """Takes everything, keeps nothing: what `Recorder(None)` is."""

    def __init__(self, path: None = None, **_options: Any) -> None:
        self.path, self.rank, self.world_size = None, 0, 1
        self.guard = Guard()
        self.guard.off = {"rollout": "no path", "gradients": "no path"}
        self._open, self._early, self._writer = {}, [], None

    def begin(self, number: int) -> Step:
        """A step that ignores what it is told: no rollouts (see `guard.off`), and metrics are rank 0's alone."""
        return Step(number, self.guard, rank=1)
