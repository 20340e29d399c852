"""numpy's arrays and scalars as they are pickled, rebuilt from checked parts.

numpy's own __setstate__ trusts what it is given; a forged dtype can make it read memory that is not the array's. Here
the type is a short code from a list, and the bytes must be exactly as many as the shape says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from timscope.data.importers.pickle_names import Buildable, Named

MAX_SIDE = 1 << 32  # also of empty arrays: (2**60, 0) holds nothing and takes for ever to walk through
_CODE = re.compile(r"[<>|=]?(?:b1|\?|[iuf][1248]|O8?|[SU]\d{1,6})")


class Dtype(Buildable):
    """numpy.dtype: a plain number, text or object type; structured types are refused."""

    __slots__ = ("code", "order")

    def __init__(self, code: Any, _align: Any = False, _copy: Any = True) -> None:
        if not isinstance(code, str) or not _CODE.fullmatch(code):
            raise TypeError(f"the numpy type {code!r} is not read here")
        self.code, self.order = code.lstrip("<>|="), "<"

    def build(self, state: Any) -> None:
        """(version, byte order, subdtype, names, fields, size, alignment, flags)"""
        _version, order, subdtype, names, fields = state[:5]
        if subdtype is not None or names is not None or fields is not None or order not in ("<", ">", "|", "="):
            raise TypeError("structured numpy types are not read here")
        self.order = ">" if order == ">" else "<"

    @property
    def objects(self) -> bool:
        """Whether the array holds Python objects."""
        return self.code[0] == "O"

    def dtype(self) -> np.dtype[Any]:
        """The real type, made from the checked code."""
        return np.dtype(self.code if self.code in ("?", "b1") else self.order + self.code)


class Array(Buildable):
    """numpy.ndarray: numbers as a view of the file, or a list of objects in `items`."""

    __slots__ = ("items", "shape", "values")

    def __init__(self, *_reconstruct: Any) -> None:
        self.values: NDArray[Any] | None = None
        self.items: list[Any] = []
        self.shape: tuple[int, ...] = (0,)

    def build(self, state: Any) -> None:
        """(version, shape, dtype, column order?, bytes or list)"""
        shape, dtype, columns, data = state[-4:]
        self.set(data, dtype, shape, "F" if columns else "C")

    def set(self, data: Any, dtype: Any, shape: Any, order: Any) -> Array:
        """Take the values; TypeError or ValueError where shape, type and data do not fit."""
        if not isinstance(dtype, Dtype):
            raise TypeError("an array without a type")
        self.shape = tuple(int(n) for n in shape)
        if any(not 0 <= n <= MAX_SIDE for n in self.shape):
            raise ValueError(f"the shape {self.shape}")
        if dtype.objects:
            if prod(self.shape) != len(data):
                raise ValueError(f"{len(data)} objects for shape {self.shape}")
            self.items = list(data)
        else:
            flat: NDArray[Any] = np.frombuffer(data, dtype.dtype())
            self.values = flat.reshape(self.shape, order="F" if order == "F" else "C")
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if self.values is not None:
            return self.values.astype(dtype or self.values.dtype, copy=False)
        objects = np.empty(len(self.items), object)
        objects[:] = self.items
        return objects.reshape(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if self.values is None and len(self.shape) == 1:
            return iter(self.items)
        return iter(np.asarray(self))


def _scalar(dtype: Any, data: Any) -> Any:
    if not isinstance(dtype, Dtype) or dtype.objects:
        raise TypeError("a numpy scalar that is no number")
    (value,) = np.frombuffer(data, dtype.dtype())
    return value.item()


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> Array:
    return Array().set(data, dtype, shape, order)


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    """Protocol 2 has no byte strings: they are text that was decoded as latin-1."""
    if encoding not in ("latin1", "latin-1") or not isinstance(text, str):
        raise TypeError("text that is no byte string")
    return text.encode("latin-1")


_CORE = ("numpy.core", "numpy._core")
NUMPY = {
    ("numpy", "ndarray"): Named("numpy.ndarray"),
    ("numpy", "dtype"): Named("numpy.dtype", Dtype),
    ("_codecs", "encode"): Named("_codecs.encode", _encode),
    **{(f"{core}.multiarray", "_reconstruct"): Named("numpy._reconstruct", Array) for core in _CORE},
    **{(f"{core}.multiarray", "scalar"): Named("numpy.scalar", _scalar) for core in _CORE},
    **{(f"{core}.numeric", "_frombuffer"): Named("numpy._frombuffer", _from_buffer) for core in _CORE},
}
