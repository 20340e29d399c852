"""A delta: every tensor's difference to the version before, in one file that is written from front to back.

Frames come first and the index of them last, so that neither side ever holds more than one tensor.

    "TSDELTA1"   frames of the first tensor, of the second, ...   index (JSON)   its length (8 bytes)   "TSDELTA1"
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

from timscope.data.storage import Storage
from timscope.data.weights.planes import CHUNK, apply_frame, frames
from timscope.data.weights.snapshot_file import read_range
from timscope.data.weights.tensors import DTYPES, Layout, RawTensor, layouts

_MAGIC = b"TSDELTA1"
_TAIL = struct.Struct("<Q8s")


def write_delta_file(handle: IO[Any], new: Mapping[str, RawTensor], old: Mapping[str, RawTensor]) -> None:
    """Write the difference of two sets of tensors. ValueError where their names, dtypes or shapes differ."""
    known = layouts(new)
    if known != layouts(old):
        raise ValueError("a delta needs the names, dtypes and shapes of the version before")
    index: list[dict[str, Any]] = []
    handle.write(_MAGIC)
    for name in sorted(known):
        tensor = new[name]
        lengths = []
        for frame in frames(tensor.flat, old[name].flat, tensor.itemsize):
            handle.write(frame)
            lengths.append(len(frame))
        index.append({"name": name, "dtype": tensor.dtype, "shape": list(tensor.shape), "frames": lengths})
    text = json.dumps(index, separators=(",", ":")).encode()
    handle.write(text + _TAIL.pack(len(text), _MAGIC))


class DeltaFile:
    """A delta in a run, read tensor by tensor. ValueError where it is none or is damaged."""

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage, self._path = storage, path
        size = storage.size(path) or 0
        length, magic = _TAIL.unpack(read_range(storage, path, max(0, size - _TAIL.size), size or _TAIL.size))
        if magic != _MAGIC or length > size:
            raise ValueError(f"{path} is not a delta file")
        self.layouts: dict[str, Layout] = {}
        self._frames: dict[str, tuple[int, list[int]]] = {}
        end = size - _TAIL.size
        offset = len(_MAGIC)
        try:
            for said in json.loads(read_range(storage, path, end - length, end)):
                name, lengths = str(said["name"]), [int(n) for n in said["frames"]]
                self.layouts[name] = (str(said["dtype"]), tuple(int(n) for n in said["shape"]))
                self._frames[name] = (offset, lengths)
                offset += sum(lengths)
                if min(lengths, default=0) < 0 or offset > end - length:
                    raise ValueError(f"{path}: the frames of tensor {name} lie outside the file")
        except (KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path} has a damaged index ({error!r})") from error

    def apply(self, name: str, target: bytearray) -> None:
        """Turn the tensor's old bytes into its new ones, in place."""
        offset, lengths = self._frames[name]
        packed = memoryview(read_range(self._storage, self._path, offset, offset + sum(lengths)))
        flat = np.frombuffer(target, np.uint8)
        if len(lengths) != -(-flat.size // CHUNK):
            raise ValueError(f"{self._path}: tensor {name} has {len(lengths)} frames for {flat.size:,} bytes")
        start = 0
        for number, length in enumerate(lengths):
            chunk = flat[number * CHUNK : (number + 1) * CHUNK]
            apply_frame(packed[start : start + length], chunk, DTYPES[self.layouts[name][0]][0])
            start += length
