"""Files of `torch.save`, read without torch: a zip of one pickle and the raw bytes of every storage."""

from __future__ import annotations

import io
import struct
import zipfile
from typing import Any

from timscope.data.errors import BadInput
from timscope.data.importers.pickle_names import Named
from timscope.data.importers.pickles import Damaged
from timscope.data.importers.tensors import STORAGES, Storage
from timscope.data.importers.torch_names import TORCH
from timscope.data.importers.unpickle import Names, load_pickle

_LEGACY = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
_LOCAL = struct.Struct("<4s22xHH")  # of a zip's local header: signature, lengths of name and extra field


class _ViewFile(io.RawIOBase):
    """A seekable file over a view, so that `zipfile` reads the directory without a copy of the rest."""

    def __init__(self, view: memoryview) -> None:
        self._view, self._at = view, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, len(self._view))[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        piece = self._view[self._at : self._at + len(buffer)]
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


class _Archive:
    """The entries of a torch zip, as views."""

    def __init__(self, view: memoryview, place: str) -> None:
        self._view, self.place = view, place
        try:
            with zipfile.ZipFile(io.BufferedReader(_ViewFile(view))) as archive:
                self._entries = {info.filename: info for info in archive.infolist()}
        except (zipfile.BadZipFile, ValueError, OSError, struct.error, NotImplementedError) as error:
            raise Damaged(f"{place} is cut short or damaged ({error}): copy it again") from error
        pickles = [name for name in self._entries if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise BadInput(f"{place} is a zip file but not one of torch.save: give the file that torch wrote")
        self.prefix = pickles[0].removesuffix("data.pkl")

    def entry(self, name: str) -> memoryview:
        """An entry's bytes. Raises `Damaged` where it is missing or lies outside of the file, BadInput where it is
        compressed: torch never does that, and unpacking could fill the memory."""
        info = self._entries.get(self.prefix + name)
        if info is None:
            raise Damaged(f"{self.place} lacks its entry {name}: copy it again")
        if info.compress_type != zipfile.ZIP_STORED:
            raise BadInput(f"{self.place} has a compressed entry {name}, which torch never writes: unpack it first")
        head = self._view[info.header_offset : info.header_offset + _LOCAL.size]
        if len(head) < _LOCAL.size:
            raise Damaged(f"{self.place} is cut short before its entry {name}: copy it again")
        signature, name_size, extra_size = _LOCAL.unpack(head)
        start = info.header_offset + _LOCAL.size + name_size + extra_size
        piece = self._view[start : start + info.file_size]
        if signature != b"PK\x03\x04" or len(piece) != info.file_size:
            raise Damaged(f"{self.place} is cut short or damaged in its entry {name}: copy it again")
        return piece

    def has(self, name: str) -> bool:
        return self.prefix + name in self._entries


def load_torch(view: memoryview, place: str, names: Names | None = None, placeholders: set[str] | None = None) -> Any:
    """The object in a file of `torch.save`; tensors are `Tensor` and `Nested`, read when they are asked for.

    `names` and `placeholders`: see `load_pickle`. Raises `Damaged` where the file is cut short, BadInput where it is of
    torch's format before 1.6 or no torch file at all.
    """
    if bytes(view[: len(_LEGACY)]) == _LEGACY:
        raise BadInput(
            f"{place} is in torch's old format (before 1.6): load it with torch where it was written and torch.save it "
            "again"
        )
    if bytes(view[:4]) != b"PK\x03\x04":
        raise Damaged(f"{place} is not a file of torch.save")
    archive = _Archive(view, place)
    order = ">" if archive.has("byteorder") and bytes(archive.entry("byteorder")) == b"big" else "<"

    def storage(pid: Any) -> Storage:
        tag, kind, key, _device, _items = pid
        if tag != "storage" or not isinstance(kind, Named) or not isinstance(key, str):
            raise TypeError("a persistent id that is no storage")
        dtype = STORAGES.get(kind.name.removeprefix("torch."), "uint8")
        return Storage(lambda: archive.entry(f"data/{key}"), dtype, order)

    return load_pickle(archive.entry("data.pkl"), place, {**TORCH, **(names or {})}, placeholders, storage)
