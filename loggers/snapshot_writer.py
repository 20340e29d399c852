"""The half of snapshots that runs on the writer's thread: digest, difference, compress, write, point."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from timscope.data import RunWriter
from timscope.data.digest import digest_tensors
from timscope.data.weights import Entry, RawTensor, WeightStore, items
from timscope.data.weights.checkpoint import has_weights
from timscope.loggers.fingerprint import PendingFingerprint
from timscope.loggers.guard import Guard
from timscope.loggers.host_copy import HostCopy

Where = str | os.PathLike[str] | Callable[[int], str | os.PathLike[str] | None]


class SnapshotWriter:
    """Stores the versions that it is given, each as a difference to the last where `chain` is above 1.

    `chain`: versions from one whole snapshot to the next. `free`: where buffers go that are no longer needed.
    `digests`: fingerprints by version. An error turns the column "snapshots" (or "weights") off and goes no further.
    """

    def __init__(
        self, writer: RunWriter, guard: Guard, chain: int, free: SimpleQueue[HostCopy], digests: dict[int, str]
    ) -> None:
        self._guard, self._chain, self._free, self._digests = guard, chain, free, digests
        self._store = WeightStore(writer.storage)
        self._resume = writer.resumes
        self._base: tuple[Entry, HostCopy, dict[str, RawTensor]] | None = None
        self._pointed: set[int] = set()
        self._swept = False

    def settle(self, version: int, pending: PendingFingerprint) -> None:
        """Wait for a fingerprint; its buffers are let go."""
        with self._guard.column("weights"):
            self._digests[version] = pending.result()

    def keep(self, version: int, copy: HostCopy) -> None:
        """Store the weights in `copy`; the buffer is kept for the next difference, or given back."""
        unneeded: HostCopy | None = copy
        try:
            with self._guard.column("snapshots"):
                if not self._swept:
                    self._store.sweep()
                    self._swept = True
                tensors = copy.wait()
                entry = self._written(version, tensors)
                if self._chain > 1:
                    unneeded = self._base[1] if self._base else None
                    self._base = (entry, copy, tensors)
        finally:
            if unneeded is not None:
                self._free.put(unneeded)

    def _written(self, version: int, tensors: dict[str, RawTensor]) -> Entry:
        digest = digest_tensors(items(tensors))
        said = {"digest": digest, "fingerprint": self._digests.get(version)}
        there = self._store.find(version, self._resume)
        if there is not None and there.digest == digest:
            return there  # a resumed job begins with a version that it stored before it died
        if self._base is not None:
            base, _, old = self._base
            same = {n: t.layout for n, t in old.items()} == {n: t.layout for n, t in tensors.items()}
            if same and base.depth + 1 < self._chain:
                return self._store.write_delta(version, tensors, base, old, resume=self._resume, **said)
        return self._store.write_full(version, tensors, resume=self._resume, **said)

    def point(self, versions: Sequence[int], where: Where) -> None:
        """Point to the framework's checkpoints of these versions, where there are any by now."""
        with self._guard.column("snapshots"):
            for version in versions:
                folder = where(version) if callable(where) else _numbered(where, version)
                if folder is None or version in self._pointed or not has_weights(folder):
                    continue
                self._pointed.add(version)
                there = self._store.find(version, self._resume)
                if there is None or (there.resume != self._resume and there.fingerprint != self._digests.get(version)):
                    self._store.point(version, folder, resume=self._resume, fingerprint=self._digests.get(version))


def _numbered(folder: str | os.PathLike[str], version: int) -> str:
    return f"{os.fspath(folder).rstrip('/')}/checkpoint-{version}"
