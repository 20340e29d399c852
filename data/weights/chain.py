"""From a version back to the snapshot it rests on: finds what is needed, and says what is there where it is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from timscope.data.errors import BadInput
from timscope.data.storage import Storage
from timscope.data.weights.checkpoint import Checkpoint
from timscope.data.weights.delta_file import DeltaFile
from timscope.data.weights.entry import Entry, Key, is_stored, read_entry, stored_keys
from timscope.data.weights.restored import Weights
from timscope.data.weights.snapshot_file import SnapshotFile
from timscope.data.weights.tensors import RawTensor


class Chains:
    """Opens versions of one run."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def open(self, version: int, entry: Entry | None, near: Weights | None = None) -> Weights:
        """The weights of `entry` (None: `version` is not stored). BadInput as `WeightStore.load` says."""
        if entry is None:
            raise BadInput(
                f"weights version {version} was never stored in {self._storage.full('')}: it has "
                f"{spans(sorted({v for v, _ in stored_keys(self._storage)}))}"
            )
        links = self._links(entry, near.entry.key if near is not None else None)
        try:
            if near is not None and links[0].key == near.entry.key:
                base: Mapping[str, RawTensor] = near
            else:
                base = self._base(links[0])
            deltas = [DeltaFile(self._storage, f"{e.folder}/{e.files[0].name}") for e in links[1:]]
        except (ValueError, OSError) as error:
            raise self.refuse(entry, str(error)) from error
        return Weights(entry, base, deltas, self.refuse)

    def refuse(self, entry: Entry, reason: str) -> BadInput:
        """The error for a version that is damaged, with what can still be had."""
        others = sorted({version for version, resume in self._whole() if (version, resume) != entry.key})
        return BadInput(
            f"weights version {entry.version} of {self._storage.full('')} cannot be restored: {reason}. Copy its files "
            f"again, or use another version: {spans(others)}"
        )

    def _whole(self) -> set[Key]:
        """Versions whose files are all there in full length, down to their snapshots."""
        whole: set[Key] = set()
        for key in stored_keys(self._storage):  # sorted: a delta comes after what it rests on
            try:
                entry = read_entry(self._storage, key)
                if self._damage(entry) is None and (entry.kind != "delta" or entry.base in whole):
                    whole.add(key)
            except BadInput:
                continue
        return whole

    def _links(self, entry: Entry, near: Key | None) -> list[Entry]:
        """The version and all it rests on, the snapshot (or `near`) first."""
        links = [entry]
        while links[-1].key != near:
            last = links[-1]
            if wrong := self._damage(last):
                raise self.refuse(entry, wrong)
            if last.kind != "delta":
                break
            if last.base is None or not is_stored(self._storage, last.base):
                raise self.refuse(entry, f"it rests on version {last.base[0] if last.base else '?'}, which is missing")
            links.append(read_entry(self._storage, last.base))
            if len(links) > entry.depth + 1:
                raise self.refuse(entry, "its chain of deltas does not end")
        return links[::-1]

    def _damage(self, entry: Entry) -> str | None:
        """The first file that is missing or has another size, or None."""
        place, prefix = self._storage, f"{entry.folder}/"
        if entry.kind == "checkpoint":
            place, prefix = self._checkpoint(entry), ""
        for file in entry.files:
            there = place.size(prefix + file.name)
            if there != file.bytes:
                what = "is missing" if there is None else f"has {there:,} of {file.bytes:,} bytes"
                return f"{place.full(prefix + file.name)} {what}"
        return None if entry.files else "it names no files"

    def _checkpoint(self, entry: Entry) -> Storage:
        path = entry.path or ""
        return Storage(path if "://" in path or path.startswith("/") else self._storage.full(path))

    def _base(self, entry: Entry) -> Mapping[str, RawTensor]:
        if entry.kind == "checkpoint":
            return Checkpoint(self._checkpoint(entry))
        return SnapshotFile(self._storage, f"{entry.folder}/{entry.files[0].name}")


def spans(numbers: Sequence[int]) -> str:
    """ "0 to 4, 7" for sorted numbers; "none" for none."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(f"{a} to {b}" if a < b else str(a) for a, b in found) or "none"
