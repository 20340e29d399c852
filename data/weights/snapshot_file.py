"""Full snapshots: the safetensors format, which every tool reads, written and read one tensor at a time.

The safetensors package wants all values in memory as a second copy; the format is an eight-byte length, a JSON header
and the values, so it is written here directly. Tests hold it against the package both ways.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import IO, Any

from timscope.data.storage import Storage
from timscope.data.weights.tensors import DTYPES, NAMES, Layout, LazyTensors, RawTensor, layout_bytes, layouts

_LENGTH = struct.Struct("<Q")


def read_range(storage: Storage, path: str, start: int, end: int) -> bytes:
    """Bytes start to end of a file. ValueError where the file is shorter."""
    data = storage.fs.cat_file(storage.full(path), start=start, end=end) if end > start else b""
    if len(data) != end - start:
        raise ValueError(f"{path} ends before byte {end:,}")
    return bytes(data)


def write_snapshot(handle: IO[Any], tensors: Mapping[str, RawTensor], metadata: Mapping[str, str]) -> None:
    """Write tensors as one safetensors file; `metadata` is kept in its header.

    Tensors lie by element size, largest first, then by name: every value is aligned, as the package has it.
    """
    known = layouts(tensors)
    order = sorted(known, key=lambda name: (-DTYPES[known[name][0]][0], name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name in order:
        dtype, shape = known[name]
        start, end = end, end + layout_bytes(known[name])
        header[name] = {"dtype": DTYPES[dtype][1], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    handle.write(_LENGTH.pack(len(text)) + text)
    for name in order:
        handle.write(tensors[name].data)


class SnapshotFile(LazyTensors):
    """A safetensors file in a run or a checkpoint. ValueError where it is none or is damaged."""

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage, self._path = storage, path
        size = storage.size(path) or 0
        (length,) = _LENGTH.unpack(read_range(storage, path, 0, _LENGTH.size))
        if length > size - _LENGTH.size:
            raise ValueError(f"{path} is not a safetensors file")
        self._data = _LENGTH.size + length
        self._layouts: dict[str, Layout] = {}
        self._places: dict[str, tuple[int, int]] = {}
        try:
            header = json.loads(read_range(storage, path, _LENGTH.size, self._data))
            for name, said in header.items():
                if name != "__metadata__":
                    self._layouts[name] = (NAMES[said["dtype"]], tuple(int(n) for n in said["shape"]))
                    start, end = said["data_offsets"]
                    self._places[name] = (int(start), int(end))
                    if not 0 <= start <= end <= size - self._data:
                        raise ValueError(f"{path}: tensor {name} lies outside the file")
        except (KeyError, TypeError, AttributeError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path} has a damaged header ({error!r})") from error

    @property
    def layouts(self) -> Mapping[str, Layout]:
        """dtype and shape of every tensor."""
        return self._layouts

    def __getitem__(self, name: str) -> RawTensor:
        """Read one tensor."""
        start, end = self._places[name]
        data = read_range(self._storage, self._path, self._data + start, self._data + end)
        return RawTensor(*self._layouts[name], data)
