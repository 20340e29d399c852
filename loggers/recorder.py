"""The framework-free recorder: any training loop writes a run with it, in about five lines a step.

    recorder = Recorder("runs/a", framework="mine", sampling={"temperature": 1.0})
    with recorder.step(7) as step:
        step.rollout(prompt_ids=p, completion_ids=c, rollout_logprob=r, weight_version=7)
        step.trainer(old_logprob=t, loss_logprob=n, entropy=h, mask=m)
        step.scores(advantage=a, rewards={"exact": e})
        step.metrics(loss=loss, grad_norm=norm)

It copies what it is given, hands it to the writer's thread and never raises into the loop (see guard.py). What is still
queued is written at the end of the process and on SIGTERM (see shutdown.py). With no path it records nothing, so a loop
needs no `if`.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from timscope.data import Manifest, RunWriter
from timscope.data.manifest import WeightVersion
from timscope.loggers.bundle import Step
from timscope.loggers.fitting import whole_number
from timscope.loggers.guard import Guard
from timscope.loggers.manifest_fields import manifest_fields
from timscope.loggers.shutdown import unwatch, watch


class Recorder:
    """Records a run. One object a process; `rank` and `world_size` say which share of the batch it sees.

    `path`: directory or fsspec URL, None to record nothing. `fields`: top-level manifest fields (see data/manifest.py);
    framework, model, tokenizer, rollout, trainer and algorithm may be a bare name. `overflow`: what to do when the disk
    is too slow and `queue_size` steps wait, "block" or "drop" (counted). `snapshots`: what is kept of the weights, see
    snapshots.py. `sigterm`: flush on SIGTERM. Raises only where `strict` is set.
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
        queue_size: int = 64,
        overflow: Literal["block", "drop"] = "block",
        strict: bool = False,
        snapshots: Any = "digest",
        sigterm: bool = True,
        **fields: Any,
    ) -> None:
        self.path, self.rank, self.world_size = path, rank, world_size
        self.guard = Guard(strict, self._note)
        self.digests: dict[int, str] = {}  # of weights versions, as far as they are known
        self._policy: Any = snapshots
        self._snapshots: Any = None
        self._open: dict[int, Step] = {}
        self._early: list[str] = []
        self._writer: RunWriter | None = None
        overflow = self.guard.option("overflow", overflow, overflow in ("block", "drop"), "block")
        fits = isinstance(queue_size, int) and queue_size > 0
        queue_size = self.guard.option("queue_size", queue_size, fits, 64)  # no places at all: it would wait for ever
        with self.guard.column("run"):
            from timscope import __version__

            known = manifest_fields({"timscope_version": __version__, **fields}, self.guard)
            assert path is not None
            place: dict[str, Any] = {"rank": rank, "world_size": world_size}
            self._writer = RunWriter(
                path, Manifest(**known), queue_size=queue_size, overflow=overflow, strict=strict, **place
            )
            for message in self._early:
                self._writer.report(message, log=False)
            atexit.register(self.close)
            if sigterm:
                watch(self)

    @property
    def snapshots(self) -> Any:
        """The policy that says what is kept of each weights version."""
        if self._snapshots is None:
            from timscope.loggers.snapshots import Snapshots

            self._snapshots = Snapshots.of(self._policy)
        return self._snapshots

    @property
    def manifest(self) -> Manifest:
        """The manifest as it stands."""
        return self._writer.manifest if self._writer else Manifest()

    @property
    def errors(self) -> list[str]:
        """What went wrong so far: hook errors and write errors."""
        return list(self._writer.errors) if self._writer else [*self._early]

    def begin(self, number: int) -> Step:
        """Step `number` (from 0; a numpy or tensor scalar will do), open: the same object until `complete`. Steps may
        overlap. What is said of a step whose number is none is not recorded."""
        known = self._number(number)
        if known is None:
            return Step(-1, self.guard, self.rank, self.world_size)
        if known not in self._open or self._open[known].failed:
            resume = self._writer.resumes if self._writer else 0
            place = {"rank": self.rank, "world_size": self.world_size}
            self._open[known] = Step(known, self.guard, **place, resume=resume, digest_of=self.digests.get)
        return self._open[known]

    def _number(self, number: Any) -> int | None:
        """The step number as the run's files have it, or None; the first bad one is kept with the run."""
        try:
            known = whole_number(number)
            if not 0 <= known < 2**31:
                raise ValueError(f"{known} is no step: steps count from 0")
        except Exception as error:
            if self.guard.strict:
                raise
            self.guard.turn_off("step number", f"{type(error).__name__}: {error}; such steps are not recorded")
            return None
        return known

    @contextmanager
    def step(self, number: int) -> Iterator[Step]:
        """Step `number` for the block; completed at its end, left incomplete if the block raises. Beginning it again
        forgets what the failed attempt said."""
        bundle = self.begin(number)
        try:
            yield bundle
        except BaseException:
            bundle.failed = True
            raise
        self.complete(number)

    def complete(self, number: int) -> None:
        """Write what step `number` holds and mark it finished. Does nothing for a step that was never begun."""
        known = self._number(number)
        if known in self._open:
            self._flush(self._open.pop(known), finished=True)

    def _flush(self, bundle: Step, finished: bool) -> None:
        if self._writer is None:
            return
        with self.guard.column("write"):
            self._writer.put_later(bundle.number, bundle.tables, bundle.tokens)
            if finished:
                self._writer.complete(bundle.number)

    def update_manifest(self, **fields: Any) -> None:
        """Replace top-level manifest fields (rank 0 writes)."""
        if self._writer is not None:
            with self.guard.column("manifest"):
                self._writer.update_manifest(**manifest_fields(fields, self.guard))

    def add_weights(self, version: int, digest: str | None = None, source: str | None = None) -> None:
        """Say which weights a version is: `digest` from `timscope.data.digest`, `source` where to get them."""
        with self.guard.column("manifest.weights"):
            said = WeightVersion(version=whole_number(version), digest=digest, source=source)
            self.update_manifest(weights=[*(w for w in self.manifest.weights if w.version != said.version), said])

    def weights(self, version: int, model: Any) -> None:
        """`model` (a torch module, whole) holds weights `version` now: keep what the policy `snapshots` says. Call it
        before training and after each optimizer step, in the thread that trains; ranks above 0 do nothing."""
        if self._writer is not None and self.rank == 0 and self.guard.on("weights"):
            with self.guard.column("weights"):
                self.snapshots.take(int(version), model, self._writer, self.guard, self.digests)

    def flush(self, timeout: float | None = None, *, last: bool = False) -> bool:
        """Wait until all complete steps are on disk; false after `timeout` seconds. `last`: nothing comes after this,
        so steps that only wait for metrics are finished without them."""
        if last:
            self._finish(only_ended=True)
        return self._writer is not None and self._writer.flush(timeout)

    def _finish(self, only_ended: bool = False) -> None:
        for number, step in list(self._open.items()):
            if step.ended or not only_ended:
                self._flush(self._open.pop(number), finished=step.ended)

    def close(self) -> None:
        """Write what is left and end the writer's thread: a step that the optimizer has finished is complete, any other
        open step stays incomplete. Safe to call twice."""
        atexit.unregister(self.close)
        unwatch(self)
        self._finish()
        if self._writer is not None:
            with self.guard.column("close"):
                if self._snapshots is not None:
                    self._snapshots.finish(self._writer, self.guard)
                self._writer.close()

    def _note(self, message: str) -> None:
        if self._writer is not None:
            self._writer.report(message, log=False)  # the guard has logged it
        elif message not in self._early:
            self._early.append(message)

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
        self.digests, self._policy, self._snapshots = {}, None, None
        self._open, self._early, self._writer = {}, [], None

    def begin(self, number: int) -> Step:
        """A step that ignores what it is told: no rollouts (see `guard.off`), and metrics are rank 0's alone."""
        return Step(number, self.guard, rank=1)
