"""A list of numbers as an array: dumps hold tokens and log-probs as plain lists, which as Python objects take 4 to 8
times the memory of the file."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

# Opcodes of floats and small integers, up to APPENDS: after EMPTY_LIST (and its place in the memo), and after MARK.
LIST_RUN = re.compile(rb"(?:q.|r.{4}|\x94)?\((?:G.{8}|K.|M..|J.{4})++e", re.S)
RUN = re.compile(rb"(?:G.{8}|K.|M..|J.{4})++e", re.S)


class Numbers(Sequence[Any]):
    """A list that is kept in chunks: arrays for runs of numbers, lists for anything else. Behaves as a sequence."""

    __slots__ = ("_chunks",)

    def __init__(self) -> None:
        self._chunks: list[NDArray[Any] | list[Any]] = []

    def extend_numbers(self, run: NDArray[Any]) -> None:
        """Append a run of numbers."""
        self._chunks.append(run)

    def extend(self, items: list[Any]) -> None:
        """Append items of any kind."""
        numbers = all(type(i) is float or (type(i) is int and -(2**63) <= i < 2**63) for i in items)
        self._chunks.append(np.array(items) if numbers else items)

    def __len__(self) -> int:
        return sum(len(chunk) for chunk in self._chunks)

    def __iter__(self) -> Iterator[Any]:
        for chunk in self._chunks:
            yield from (chunk.tolist() if isinstance(chunk, np.ndarray) else chunk)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return list(self)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """One array; of objects where not every item is a number."""
        arrays = [c for c in self._chunks if isinstance(c, np.ndarray)]
        if len(arrays) != len(self._chunks) or not arrays:
            return np.array(list(self), dtype=dtype)
        whole = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        self._chunks = [whole]
        return whole.astype(dtype or whole.dtype, copy=False)


def decode(run: memoryview) -> NDArray[Any]:
    """A run of number opcodes as float64 or int32."""
    raw = np.frombuffer(run, np.uint8)
    if raw.size % 9 == 0:
        items = raw.reshape(-1, 9)
        if np.all(items[:, 0] == ord("G")):
            return np.ascontiguousarray(items[:, 1:]).view(">f8")[:, 0].astype(np.float64)
    # Opcodes of numbers alone, checked by the pattern: this cannot name anything.
    numbers = np.array(pickle.loads(b"".join((b"\x80\x02](", run, b"e."))))
    return numbers.astype(np.int32) if numbers.dtype.kind == "i" else numbers.astype(np.float64)
