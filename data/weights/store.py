"""The weights folder of a run: which versions there are, how to add one, how to get one back."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import IO, Any

from timscope.data.digest import digest_tensors
from timscope.data.errors import BadInput
from timscope.data.storage import Storage
from timscope.data.weights.chain import Chains
from timscope.data.weights.checkpoint import checkpoint_files
from timscope.data.weights.delta_file import write_delta_file
from timscope.data.weights.entry import (
    FOLDER,
    VERSION_FILE,
    Entry,
    Key,
    StoredFile,
    is_stored,
    read_entry,
    stored_keys,
    write_entry,
)
from timscope.data.weights.restored import Weights
from timscope.data.weights.snapshot_file import write_snapshot
from timscope.data.weights.tensors import RawTensor, items, layout_bytes, layouts

FULL, DELTA = "full.safetensors", "delta.zst"


class WeightStore:
    """Versions of weights under RUN/weights. A version appears when it is whole and never changes after that."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def keys(self) -> list[Key]:
        """(version, resume) of everything stored, sorted."""
        return stored_keys(self._storage)

    def versions(self) -> list[int]:
        """Numbers of the versions stored, sorted, each once."""
        return sorted({version for version, _ in self.keys()})

    def find(self, version: int, resume: int | None = None) -> Entry | None:
        """The version as it was in the job's life `resume`: the last recorded in it or before (None: the last of all).

        A life that was resumed from a checkpoint starts from a version of the life before.
        """
        keys = [key for key in stored_keys(self._storage, version) if resume is None or key[1] <= resume]
        return read_entry(self._storage, keys[-1]) if keys else None

    def load(
        self, version: int, resume: int | None = None, *, near: Weights | None = None, verify: bool = True
    ) -> Weights:
        """The weights of a version, tensor by tensor; see `find` for `resume`.

        `verify`: read all of them once and compare their digest. `near`: weights held in memory (`Weights.in_memory`)
        from which fewer deltas lead here, if they are on the way. BadInput where the version was never recorded, a file
        of its chain is missing or cut short, or the digest is another.
        """
        weights = Chains(self._storage).open(version, self.find(version, resume), near)
        if verify:
            weights.verify()
        return weights

    def write_full(
        self,
        version: int,
        tensors: Mapping[str, RawTensor],
        *,
        resume: int = 0,
        digest: str | None = None,
        fingerprint: str | None = None,
    ) -> Entry:
        """Store a version whole, as safetensors; `digest` (SHA-256) is taken here where it is not given.

        A version that is stored already with the same digest is left alone and returned; ValueError where it is stored
        with another. OSError where it cannot be written: then it is not there.
        """
        digest = digest or digest_tensors(items(tensors))
        entry = Entry(version=version, resume=resume, kind="full", digest=digest, fingerprint=fingerprint)
        said = {"format": "pt", "version": str(version), "digest": digest}
        return self._add(entry, FULL, tensors, lambda handle: write_snapshot(handle, tensors, said))

    def write_delta(
        self,
        version: int,
        tensors: Mapping[str, RawTensor],
        base: Entry,
        base_tensors: Mapping[str, RawTensor],
        *,
        resume: int = 0,
        digest: str | None = None,
        fingerprint: str | None = None,
    ) -> Entry:
        """Store a version as its difference to `base`, whose tensors are `base_tensors`; otherwise as `write_full`.

        ValueError also where names, dtypes or shapes differ from the base's.
        """
        digest = digest or digest_tensors(items(tensors))
        entry = Entry(version=version, resume=resume, kind="delta", digest=digest, fingerprint=fingerprint)
        entry = entry.model_copy(update={"base": base.key, "depth": base.depth + 1})
        return self._add(entry, DELTA, tensors, lambda handle: write_delta_file(handle, tensors, base_tensors))

    def point(
        self,
        version: int,
        path: str | os.PathLike[str],
        *,
        resume: int = 0,
        digest: str | None = None,
        fingerprint: str | None = None,
    ) -> Entry:
        """Say that a version lies in a checkpoint folder (Hugging Face safetensors, sharded or not); copies nothing.

        Without a digest or fingerprint of those weights the checkpoint will be believed. BadInput where there is no
        such checkpoint.
        """
        folder = os.fspath(path)
        try:
            files = checkpoint_files(Storage(folder))
        except ValueError as error:
            raise BadInput(f"{folder} is no checkpoint that can be pointed to: {error}") from error
        entry = Entry(version=version, resume=resume, kind="checkpoint", digest=digest, fingerprint=fingerprint)
        inside = folder.removeprefix(self._storage.full("") + "/")
        return self._publish(entry.model_copy(update={"path": inside, "files": files}))

    def sweep(self) -> int:
        """Delete what a crash left of versions that never appeared; returns how many files. Only for the writer."""
        left = []
        for folder in self._storage.names(FOLDER):
            names = self._storage.names(f"{FOLDER}/{folder}")
            mine = [name for name in names if name.startswith((FULL, DELTA, VERSION_FILE))]
            half = [name for name in mine if name.endswith(".tmp") or VERSION_FILE not in names]
            left += [f"{FOLDER}/{folder}/{name}" for name in half]
        for path in left:
            self._storage.fs.rm_file(self._storage.full(path))
        return len(left)

    def _add(self, entry: Entry, name: str, tensors: Mapping[str, RawTensor], fill: Callable[[IO[Any]], None]) -> Entry:
        if is_stored(self._storage, entry.key):
            return self._publish(entry)
        size = self._storage.write(f"{entry.folder}/{name}", fill)
        total = sum(map(layout_bytes, layouts(tensors).values()))
        update = {"files": [StoredFile(name=name, bytes=size)], "tensor_bytes": total}
        return self._publish(entry.model_copy(update=update))

    def _publish(self, entry: Entry) -> Entry:
        """Make a version visible, once: what is there is returned if it is the same. ValueError where it is not."""
        if not is_stored(self._storage, entry.key):
            write_entry(self._storage, entry)
            return entry
        there = read_entry(self._storage, entry.key)
        for was, new in ((there.digest, entry.digest), (there.fingerprint, entry.fingerprint)):
            if was and new and was != new:
                raise ValueError(f"weights version {entry.version} is already stored with other values")
        return there
