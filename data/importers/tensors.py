"""Tensors of torch's files as numpy arrays, without torch: views of the file, checked against its size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from timscope.data.importers.numpy_pickles import MAX_SIDE

# torch's dtype names and how numpy reads their bytes. bfloat16 has no numpy type: it becomes float32, exactly.
DTYPES = {
    "float32": "f4", "float64": "f8", "float16": "f2", "bfloat16": "u2", "int64": "i8", "int32": "i4", "int16": "i2",
    "int8": "i1", "uint8": "u1", "uint16": "u2", "uint32": "u4", "uint64": "u8", "bool": "?",
}  # fmt: skip
STORAGES = {
    "FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool",
}  # fmt: skip


@dataclass(frozen=True)
class Storage:
    """The bytes of one or several tensors; `read()` gives them. `order`: "<" or ">"."""

    read: Callable[[], memoryview]
    dtype: str
    order: str = "<"


@dataclass(frozen=True)
class Tensor:
    """A strided view of a storage, read when it is asked for."""

    storage: Storage
    dtype: str
    offset: int  # items
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """The values; ValueError where the view does not lie inside its storage or is larger than it."""
        kind = np.dtype(self.storage.order + DTYPES[self.dtype])
        raw = self.storage.read()
        base: NDArray[Any] = np.frombuffer(raw[: len(raw) // kind.itemsize * kind.itemsize], kind)
        count = prod(self.shape)
        if min((self.offset, *self.shape, *self.stride), default=0) < 0 or max(self.shape, default=0) > MAX_SIDE:
            raise ValueError(f"a tensor of shape {self.shape}, stride {self.stride}")
        last = self.offset + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        if count and (last >= len(base) or count > len(base)):
            raise ValueError(f"a tensor of {count:,} values in a storage of {len(base):,}")
        if not count:
            values: NDArray[Any] = np.zeros(self.shape, kind)
        else:
            steps = tuple(s * kind.itemsize for s in self.stride)
            values = np.lib.stride_tricks.as_strided(base[self.offset :], self.shape, steps, writeable=False)
        if self.dtype == "bfloat16":
            values = np.asarray(values.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return values if dtype is None else values.astype(dtype, copy=False)

    def __float__(self) -> float:
        return float(np.asarray(self).item())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without dimensions has no length")
        return self.shape[0]


@dataclass(frozen=True)
class Nested:
    """Rows of different lengths (torch's nested tensors, both layouts)."""

    rows: Callable[[], list[NDArray[Any]]]


def jagged(values: Any, offsets: Any, lengths: Any, axis: int = 1) -> Nested:
    """Rows of `values` cut at `offsets` along the ragged dimension (`axis`, counted with the batch's)."""

    def rows() -> list[NDArray[Any]]:
        flat, starts = np.moveaxis(np.asarray(values), axis - 1, 0), np.asarray(offsets, np.int64)
        sizes = np.diff(starts) if lengths is None else np.asarray(lengths, np.int64)
        ends = starts[: len(sizes)] + sizes
        if np.any(sizes < 0) or np.any(starts < 0) or np.any(ends > len(flat)):
            raise ValueError("row offsets outside of a nested tensor")
        return [np.moveaxis(flat[a:b], 0, axis - 1) for a, b in zip(starts.tolist(), ends.tolist(), strict=False)]

    return Nested(rows)
