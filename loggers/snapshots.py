"""Which versions of the weights a run keeps: a fingerprint of each, and, where asked for, the weights themselves.

    Recorder("runs/a", snapshots="digest")      the default: a fingerprint of every version, nothing copied
    Recorder("runs/a", snapshots=50)            every version restorable: whole each 50, lossless deltas between
    Recorder("runs/a", snapshots=Snapshots(every=100, deltas=False))      whole each 100, nothing between
    Recorder("runs/a", snapshots=Snapshots(checkpoints="out"))            point to out/checkpoint-VERSION

The trainer's thread only starts copies (host_copy.py) and fingerprints (fingerprint.py); hashing, differences,
compression and writing are jobs on the writer's thread (snapshot_writer.py). What is stored is what the model holds: a
bf16 model is stored in bf16, whatever precision the optimizer keeps for itself.
"""

from __future__ import annotations

import queue
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from timscope.data import BadInput, RunWriter
from timscope.loggers.fingerprint import Fingerprinter
from timscope.loggers.guard import Guard
from timscope.loggers.host_copy import HostCopy
from timscope.loggers.snapshot_writer import SnapshotWriter, Where
from timscope.loggers.weights import weight_tensors, why_not_whole

_PATIENCE = 8  # versions that a checkpoint may come late


@dataclass
class Snapshots:
    """The policy, and the state of the one recorder that follows it.

    every: store the weights whole each so many versions (None: store none). deltas: store the versions between as
    differences to the one before; costs a second copy of the model in host memory, and time on the writer's thread for
    every version. digest: fingerprint "every" version, the "first", or None. checkpoints: where the framework's own
    are: a folder that holds `checkpoint-VERSION`, or a function from version to folder (None while there is none).
    overflow: what happens to a version that comes before the one before it is stored: "block" waits, "drop" leaves it
    out and says so. Raises BadInput for an `every` below 1.
    """

    every: int | None = None
    deltas: bool = True
    digest: Literal["every", "first"] | None = "every"
    checkpoints: Where | None = None
    overflow: Literal["block", "drop"] = "block"

    def __post_init__(self) -> None:
        if self.every is not None and (isinstance(self.every, bool) or self.every < 1):
            raise BadInput(f"snapshots each {self.every!r} versions make no sense: give a number from 1")
        self._awaited: dict[int, int] = {}  # version without a checkpoint -> how many versions ago it was
        self._chain = self.every if self.every and self.deltas else 1
        self._free: queue.SimpleQueue[HostCopy] = queue.SimpleQueue()
        for _ in range(2 if self._chain > 1 else 1):
            self._free.put(HostCopy())
        self._fingerprinter = Fingerprinter()
        self._keeper: SnapshotWriter | None = None
        self._ready = False

    @classmethod
    def of(cls, said: Snapshots | str | int | None) -> Snapshots:
        """The policy that a short form stands for, with a state of its own. BadInput for what is none."""
        if isinstance(said, cls):
            return replace(said)
        if said is None:
            return cls(digest=None)
        if said == "digest":
            return cls()
        if isinstance(said, int):
            return cls(every=said)
        raise BadInput(f"snapshots={said!r} is unknown: give 'digest', a number of versions, a Snapshots, or None")

    def take(self, version: int, model: Any, writer: RunWriter, guard: Guard, digests: dict[int, str]) -> None:
        """`model` holds the weights `version` now: start what the policy asks for. Waits for nothing but a free buffer.

        For the thread that trains, on the stream that trains, before anything changes the weights again. The version's
        fingerprint is put into `digests` on the writer's thread, before any job that is queued after this call.
        """
        if self.every is None and self.digest is None and self.checkpoints is None:
            return
        first = self._keeper is None
        if first and (reason := why_not_whole(model)):
            guard.turn_off("weights", reason)
            return
        if self._keeper is None:
            self._keeper = SnapshotWriter(writer, guard, self._chain, self._free, digests)
        if self.digest == "every" or (self.digest == "first" and first):
            writer.call(partial(self._keeper.settle, version, self._fingerprinter.later(model)))
        self._look_for_checkpoints(writer, guard)
        if self.checkpoints is not None:
            self._awaited[version] = 0
        wanted = self.every is not None and (self._chain > 1 or first or version % self.every == 0)
        if wanted and guard.on("snapshots"):
            with guard.column("snapshots"):
                self._copy(self._keeper, version, model, writer)

    def finish(self, writer: RunWriter, guard: Guard) -> None:
        """Training has ended: look once more for checkpoints. Call it before the writer is closed."""
        self._look_for_checkpoints(writer, guard)

    def _look_for_checkpoints(self, writer: RunWriter, guard: Guard) -> None:
        # A framework saves after the hook has seen the version, so only earlier ones can be there.
        if self.checkpoints is None or self._keeper is None or not self._awaited or not guard.on("snapshots"):
            return
        writer.call(partial(self._keeper.point, list(self._awaited), self.checkpoints))
        self._awaited = {v: age + 1 for v, age in self._awaited.items() if age < _PATIENCE}

    def _copy(self, keeper: SnapshotWriter, version: int, model: Any, writer: RunWriter) -> None:
        tensors = weight_tensors(model)
        if not self._ready:  # pinning memory takes a second for 1.5 GB: all of it before training begins
            for _ in range(self._free.qsize()):
                buffer = self._free.get()
                buffer.prepare(tensors)
                self._free.put(buffer)
            self._ready = True
        try:
            copy = self._free.get(block=self.overflow == "block")
        except queue.Empty:
            writer.report(f"weights version {version} was not stored: the one before was still being written")
            return
        queued = False
        try:
            copy.take(tensors)
            queued = writer.call(partial(keeper.keep, version, copy))
        finally:
            if not queued:
                self._free.put(copy)
        if not queued:
            writer.report(f"weights version {version} was not stored: the recorder's queue was full or closed")
