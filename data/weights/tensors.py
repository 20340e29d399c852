"""One tensor as bytes with a dtype and a shape: bfloat16 and the 8-bit floats have no numpy type, so none is used."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from timscope.data.digest import Item

# Plain dtype name -> (bytes an element, its code in the safetensors format).
DTYPES: dict[str, tuple[int, str]] = {
    "float64": (8, "F64"),
    "int64": (8, "I64"),
    "uint64": (8, "U64"),
    "complex64": (8, "C64"),
    "float32": (4, "F32"),
    "int32": (4, "I32"),
    "uint32": (4, "U32"),
    "float16": (2, "F16"),
    "bfloat16": (2, "BF16"),
    "int16": (2, "I16"),
    "uint16": (2, "U16"),
    "int8": (1, "I8"),
    "uint8": (1, "U8"),
    "bool": (1, "BOOL"),
    "float8_e4m3fn": (1, "F8_E4M3"),
    "float8_e5m2": (1, "F8_E5M2"),
    "float8_e8m0fnu": (1, "F8_E8M0"),
}
Layout = tuple[str, tuple[int, ...]]

NAMES = {code: name for name, (_, code) in DTYPES.items()}


def layout_bytes(layout: Layout) -> int:
    """Bytes of a tensor of this dtype and shape."""
    return DTYPES[layout[0]][0] * math.prod(layout[1])


@dataclass(frozen=True)
class RawTensor:
    """`data`: the contiguous little-endian values of a tensor of `shape`; `dtype` is the plain name ("bfloat16").

    Raises ValueError for a dtype that is not in DTYPES and where the bytes do not fill the shape.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes | bytearray | memoryview

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"weights of dtype {self.dtype} cannot be stored: known are {', '.join(DTYPES)}")
        if self.nbytes != layout_bytes(self.layout):
            raise ValueError(f"{self.nbytes} bytes do not fill {self.dtype}{list(self.shape)}")

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return DTYPES[self.dtype][0]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.data.nbytes if isinstance(self.data, memoryview) else len(self.data)

    @property
    def flat(self) -> NDArray[np.uint8]:
        """The bytes as a flat array over the same memory."""
        return np.frombuffer(self.data, np.uint8)

    @property
    def layout(self) -> Layout:
        """dtype and shape: what must be equal for a difference to be taken."""
        return self.dtype, self.shape


class LazyTensors(Mapping[str, RawTensor]):
    """Tensors by name that are read one at a time, when they are asked for; their layouts are known before."""

    @property
    @abstractmethod
    def layouts(self) -> Mapping[str, Layout]:
        """dtype and shape of every tensor, without reading any."""

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.layouts))

    def __len__(self) -> int:
        return len(self.layouts)


def layouts(tensors: Mapping[str, RawTensor]) -> Mapping[str, Layout]:
    """dtype and shape by name."""
    if isinstance(tensors, LazyTensors):
        return tensors.layouts
    return {name: tensor.layout for name, tensor in tensors.items()}


def items(tensors: Mapping[str, RawTensor]) -> Iterator[Item]:
    """The tensors as `timscope.data.digest` takes them, by name, one at a time."""
    for name in sorted(tensors):
        tensor = tensors[name]
        yield name, tensor.dtype, tensor.shape, memoryview(tensor.data)
