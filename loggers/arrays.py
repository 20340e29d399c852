"""From whatever a trainer holds (lists, numpy, torch; ragged or padded) to one flat numpy array a row.

Everything that comes out is a copy: a trainer may overwrite its tensors as soon as the recorder returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def copied(values: Any) -> Array:
    """A numpy copy of a list, an array or a tensor. None becomes NaN; bfloat16 and half become float32 exactly.

    Tensors are recognised by what they can do (`detach`, `cpu`), so torch is never imported here.
    """
    if hasattr(values, "detach") and hasattr(values, "cpu"):
        values = values.detach().cpu()
        if values.is_floating_point() and values.element_size() < 4:
            values = values.float()  # numpy has no bfloat16
        return np.array(values.numpy(), copy=True)
    array = np.array(values, copy=True)
    if array.dtype == object:
        array = np.array(values, dtype=np.float64)  # None -> NaN; anything else that is no number raises
    return array


def is_padded(values: Any) -> bool:
    """Whether `values` is one rectangular two-dimensional block (an array or a tensor), not a list of rows."""
    return not isinstance(values, (list, tuple)) and getattr(values, "ndim", 0) == 2


def id_rows(values: Any, mask: Any = None) -> tuple[list[Array], Array | None]:
    """Token ids, one int32 array a row, and the (B, C) selection used where they came padded.

    `values`: ragged (a list of B rows) or padded (B, C) with `mask` (B, C) true on real tokens, on either side. Without
    a mask a padded block is taken whole.
    """
    if not is_padded(values):
        if mask is not None:
            raise ValueError("a mask goes with padded (B, C) ids; ragged rows need none")
        return [_ids(copied(row)) for row in values], None
    block = _ids(copied(values))
    keep = np.ones(block.shape, bool) if mask is None else copied(mask).astype(bool)
    if keep.shape != block.shape:
        raise ValueError(f"the mask is {keep.shape}, the ids are {block.shape}")
    return [row[chosen] for row, chosen in zip(block, keep, strict=True)], keep


def _ids(array: Array) -> Array:
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"token ids must be integers, not {array.dtype}")
    return array.astype(np.int32)


def token_rows(values: Any, lengths: Sequence[int], keep: Sequence[Array | None]) -> list[Array]:
    """One array a row, each as long as the row's response.

    `values` may be ragged (B rows), padded (B, C) laid out like the ids they belong to (`keep` is each row's selection,
    or None for rows that came ragged: then the first `length` columns count), (B, 1) to repeat over the row, or flat
    (N,) with the rows one after another. Raises ValueError where a row does not have one value a token.
    """
    if is_padded(values):
        block = copied(values)
        if block.shape[0] != len(lengths):
            raise ValueError(f"{block.shape[0]} rows for {len(lengths)} sequences")
        rows = [_pick(row, n, k) for row, n, k in zip(block, lengths, keep, strict=True)]
    elif _is_flat(values):
        flat = copied(values)
        if flat.size != sum(lengths):
            raise ValueError(f"{flat.size} values for {sum(lengths)} tokens")
        rows = np.split(flat, np.cumsum(lengths)[:-1]) if len(lengths) else []
    else:
        rows = [copied(row) for row in values]
        if len(rows) != len(lengths):
            raise ValueError(f"{len(rows)} rows for {len(lengths)} sequences")
    for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        if row.shape != (length,):
            raise ValueError(f"row {index} has {row.size} values for {length} tokens")
    return rows


def _pick(row: Array, length: int, keep: Array | None) -> Array:
    if row.size == 1 and length != 1:
        return np.repeat(row, length)
    if keep is None:
        return row[:length]
    return row[keep] if row.shape == keep.shape else row


def _is_flat(values: Any) -> bool:
    if isinstance(values, (list, tuple)):
        return bool(values) and all(v is None or np.isscalar(v) for v in values)
    return getattr(values, "ndim", 0) == 1 and str(values.dtype) != "object"


def row_values(values: Any, rows: int) -> list[Any]:
    """One plain value a sequence: a scalar (or a string) is repeated, tensors and arrays become Python numbers."""
    if values is None or isinstance(values, str) or np.isscalar(values):
        return [values] * rows
    items = values.detach().cpu().tolist() if hasattr(values, "detach") else list(values)
    if len(items) != rows:
        raise ValueError(f"{len(items)} values for {rows} sequences")
    return [item.item() if hasattr(item, "item") else item for item in items]


def nullable(values: Array) -> Any:
    """Floats with NaN marked as missing: a masked array, which the writer stores as NULL."""
    return np.ma.array(values, mask=np.isnan(values)) if np.issubdtype(values.dtype, np.floating) else values
