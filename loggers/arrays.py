"""From whatever a trainer holds (lists, numpy arrays, torch tensors; ragged or padded) to flat numpy arrays.

Everything here works on whole blocks, because it runs beside a training loop and every Python loop over rows would hold
the interpreter that the trainer needs too. Missing values are the mask of a masked array; NaN is a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def is_tensor(values: Any) -> bool:
    """Whether this is a torch tensor: told by what it can do, so that torch is never imported here."""
    return hasattr(values, "detach") and hasattr(values, "cpu")


def to_numpy(tensor: Any) -> Array:
    """A tensor's values, not copied where it lies in host memory; bfloat16 and half become float32 exactly."""
    tensor = tensor.detach().cpu()
    if tensor.is_floating_point() and tensor.element_size() < 4:
        tensor = tensor.float()  # numpy has no bfloat16
    array: Array = tensor.numpy()
    return array


def numbers(values: Any) -> Array:
    """Numbers as an array; None becomes a masked entry. ValueError or TypeError for anything that is no number."""
    if is_tensor(values):
        return to_numpy(values)
    array = values if isinstance(values, np.ndarray) else np.array(values)
    if array.dtype == object:
        missing = np.array([v is None for v in array.reshape(-1)], bool).reshape(array.shape)
        array = np.ma.array(np.array(array, dtype=np.float64), mask=missing)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"numbers are needed, not {array.dtype}")
    return array


def is_padded(values: Any) -> bool:
    """Whether `values` is one rectangular two-dimensional block (an array or a tensor), not a list of rows."""
    return not isinstance(values, (list, tuple)) and getattr(values, "ndim", 0) == 2


def count_rows(values: Any) -> int:
    """Rows of a ragged or padded batch. TypeError where it has none."""
    return len(values)


def joined(rows: Sequence[Any]) -> tuple[Array, Array]:
    """Ragged rows one after another, and their lengths (int64)."""
    lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))
    if all(isinstance(row, (list, tuple)) for row in rows):
        return numbers(list(chain.from_iterable(rows))), lengths
    parts = [row if isinstance(row, np.ndarray) else numbers(row) for row in rows]
    masked = any(isinstance(part, np.ma.MaskedArray) for part in parts)
    flat = np.ma.concatenate(parts) if masked else np.concatenate(parts)  # type: ignore[no-untyped-call]
    return numbers(flat), lengths


def id_rows(values: Any, mask: Any = None) -> tuple[Array, Array, Array | None]:
    """Token ids one row after another (int32), the rows' lengths, and the (B, C) selection where they came padded.

    `values`: ragged (a list of B rows) or padded (B, C) with `mask` (B, C) true on real tokens, on either side. Without
    a mask a padded block is taken whole.
    """
    if not is_padded(values):
        if mask is not None:
            raise ValueError("a mask goes with padded (B, C) ids; ragged rows need none")
        flat, lengths = joined(values)
        return _ids(flat), lengths, None
    block = numbers(values)
    keep = np.ones(block.shape, bool) if mask is None else numbers(mask).astype(bool)
    if keep.shape != block.shape:
        raise ValueError(f"the mask is {keep.shape}, the ids are {block.shape}")
    return _ids(block[keep]), keep.sum(1), keep


def _ids(array: Array) -> Array:
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"token ids must be integers, not {array.dtype}")
    if array.size and (array.min() < -(2**31) or array.max() >= 2**31):
        raise ValueError("token ids beyond 32 bits")
    return array.astype(np.int32)


def token_values(values: Any, lengths: Array, keep: Array | None) -> Array:
    """One value a response token, flat, row after row; a masked array where some are missing.

    `lengths` (B,) of the rows. `values` may be ragged (B rows), padded (B, C) laid out like the ids they belong to
    (`keep` is their selection (B, C), or None for rows that came ragged: then the first `length` columns count), (B, 1)
    to repeat over the row, or flat (N,). Raises ValueError where a row does not have one value a token.
    """
    if is_padded(values):
        return _from_block(numbers(values), lengths, keep)
    if _is_flat(values):
        flat = numbers(values)
        if flat.size != lengths.sum():
            raise ValueError(f"{flat.size} values for {lengths.sum()} tokens")
        return flat
    if len(values) != len(lengths):
        raise ValueError(f"{len(values)} rows for {len(lengths)} sequences")
    flat, sizes = joined(values)
    _check(sizes, lengths)
    return flat


def _from_block(block: Array, lengths: Array, keep: Array | None) -> Array:
    rows, width = block.shape
    if rows != len(lengths):
        raise ValueError(f"{rows} rows for {len(lengths)} sequences")
    if width == 1 and np.any(lengths != 1):
        return np.repeat(block[:, 0], lengths)
    if keep is not None and keep.shape == block.shape:
        chosen = keep
    elif keep is None:
        chosen = np.arange(width) < lengths[:, None]
    else:
        chosen = np.ones(block.shape, bool)
    _check(chosen.sum(1), lengths)
    flat: Array = block[chosen]
    return flat


def _check(sizes: Array, lengths: Array) -> None:
    if (wrong := np.flatnonzero(sizes != lengths)).size:
        row = int(wrong[0])
        raise ValueError(f"row {row} has {sizes[row]} values for {lengths[row]} tokens")


def _is_flat(values: Any) -> bool:
    if isinstance(values, (list, tuple)):
        return bool(values) and all(v is None or np.isscalar(v) for v in values)
    return getattr(values, "ndim", 0) == 1 and str(values.dtype) != "object"


def row_values(values: Any, rows: int) -> list[Any]:
    """One plain value a sequence: a scalar (or a string) is repeated, tensors and arrays become Python numbers."""
    if values is None or isinstance(values, str) or np.isscalar(values):
        return [values] * rows
    array = to_numpy(values) if is_tensor(values) else values
    items = array.tolist() if isinstance(array, np.ndarray) else list(array)
    if len(items) != rows:
        raise ValueError(f"{len(items)} values for {rows} sequences")
    return [item.item() if hasattr(item, "item") else item for item in items]
