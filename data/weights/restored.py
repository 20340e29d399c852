"""Weights of one version as they come back: read tensor by tensor through the chain of deltas, and proven."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from timscope.data.digest import digest_tensors, fingerprint
from timscope.data.errors import BadInput
from timscope.data.storage import Storage
from timscope.data.weights.delta_file import DeltaFile
from timscope.data.weights.entry import Entry
from timscope.data.weights.snapshot_file import write_snapshot
from timscope.data.weights.tensors import Layout, LazyTensors, RawTensor, items, layouts


class Weights(LazyTensors):
    """A mapping from tensor name to RawTensor. Made by `Run.weights` or `WeightStore.load`.

    Nothing is held but what `in_memory` holds: each access reads the tensor and applies its deltas. A tied output head
    is not in it. Every method raises BadInput where a file turns out to be damaged.
    """

    def __init__(
        self,
        entry: Entry,
        base: Mapping[str, RawTensor],
        deltas: Sequence[DeltaFile],
        refuse: Callable[[Entry, str], BadInput],
    ) -> None:
        self.entry, self._base, self._deltas, self._refuse = entry, base, tuple(deltas), refuse
        self._proven = False
        self._layouts = layouts(base)
        if any(delta.layouts != self._layouts for delta in self._deltas):
            raise refuse(entry, "a delta does not fit the snapshot it starts from")

    @property
    def version(self) -> int:
        """The version's number."""
        return self.entry.version

    @property
    def layouts(self) -> Mapping[str, Layout]:
        """dtype and shape of every tensor, without reading any."""
        return self._layouts

    def __getitem__(self, name: str) -> RawTensor:
        """Restore one tensor. KeyError where the version has none of that name."""
        layout = self._layouts[name]
        try:
            base = self._base[name]
            if not self._deltas:
                return base
            data = bytearray(base.data)
            for delta in self._deltas:
                delta.apply(name, data)
            return RawTensor(*layout, data)
        except BadInput:
            raise
        except (ValueError, OSError) as error:
            raise self._refuse(self.entry, str(error)) from error

    def verify(self) -> None:
        """Read every tensor once and compare the digest with the one recorded; at once where that was done before."""
        if not self._proven:
            self._prove(self)

    def in_memory(self) -> Weights:
        """The same weights held in host memory, proven: what a walk from version to version starts from."""
        held = Weights(self.entry, {name: self[name] for name in self}, (), self._refuse)
        if not self._proven:
            held._prove(held)
        held._proven = self._proven = True
        return held

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write them as one safetensors file at `path` (or an fsspec URL), proven first, whole or not at all."""
        self.verify()
        folder, _, name = os.fspath(path).replace(os.sep, "/").rpartition("/")

        def fill(handle: IO[Any]) -> None:
            write_snapshot(handle, self, {"format": "pt"})

        Storage(folder or ("/" if os.fspath(path).startswith("/") else ".")).write(name, fill)

    def _prove(self, tensors: Mapping[str, RawTensor]) -> None:
        entry = self.entry
        if entry.digest is not None:
            found, wanted = digest_tensors(items(tensors)), entry.digest
        elif entry.fingerprint is not None:
            found, wanted = fingerprint(items(tensors)), entry.fingerprint
        else:
            found = wanted = ""  # a checkpoint that nobody took a digest of: nothing can be proven
        if found != wanted:
            raise self._refuse(entry, f"its digest is {found[:19]}, recorded was {wanted[:19]}")
        self._proven = True
