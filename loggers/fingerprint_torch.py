"""Row hashes of weights with plain torch operations, for a GPU without Triton: the same numbers, in more launches.

Two kernels for each 16 MiB of weights. Tensors of less than a mebibyte, and the ends of larger ones, are gathered
first, so that a thousand small ones do not mean a thousand launches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from timscope.data.digest import LANES, ROW_BYTES, ROW_WORDS, row_table
from timscope.loggers.weights import flat_bytes

Part = tuple[int, int, int]  # number of the tensor, first row, rows

_BATCH_ROWS = 256  # 16 MiB of weights a launch, 64 MiB of products
_OWN_LAUNCH_ROWS = 16  # a tensor this large is not gathered


def row_hashes(tensors: Sequence[tuple[int, Any]]) -> tuple[list[Part], Any]:
    """(parts, int64 row hashes [rows, LANES]) of numbered tensors of one device, on that device, without waiting."""
    import torch

    device = tensors[0][1].device
    table = multipliers(str(device))
    total = sum(-(-t.numel() * t.element_size() // ROW_BYTES) for _, t in tensors)
    hashes = torch.empty((total, LANES), dtype=torch.int64, device=device)
    parts: list[Part] = []
    start = 0
    for said, words in _batches(tensors):
        torch.sum(words[:, None, :] * table, dim=-1, out=hashes[start : start + len(words)])
        parts += said
        start += len(words)
    return parts, hashes


def _batches(tensors: Sequence[tuple[int, Any]]) -> Iterator[tuple[list[Part], Any]]:
    """Rows of int32 words [at most _BATCH_ROWS, ROW_WORDS] and whose they are."""
    import torch

    parts: list[Part] = []
    pieces: list[Any] = []
    zeros = torch.zeros(ROW_BYTES, dtype=torch.uint8, device=tensors[0][1].device)
    for number, tensor in tensors:
        data = flat_bytes(tensor)
        whole = data.numel() // ROW_BYTES if data.numel() >= _OWN_LAUNCH_ROWS * ROW_BYTES else 0
        if whole and data.storage_offset() % 4:
            data = data.clone()  # int32 words must be aligned
        for first in range(0, whole, _BATCH_ROWS):
            last = min(first + _BATCH_ROWS, whole)
            yield [(number, first, last - first)], _words(data[first * ROW_BYTES : last * ROW_BYTES])
        if rest := data.numel() - whole * ROW_BYTES:
            rows = -(-rest // ROW_BYTES)
            if sum(n for _, _, n in parts) + rows > _BATCH_ROWS:
                yield parts, _words(torch.cat(pieces))
                parts, pieces = [], []
            parts.append((number, whole, rows))
            pieces += [data[whole * ROW_BYTES :], zeros[: rows * ROW_BYTES - rest]]
    if pieces:
        yield parts, _words(torch.cat(pieces))


def _words(data: Any) -> Any:
    import torch

    return data.view(torch.int32).view(-1, ROW_WORDS)


@cache
def multipliers(device: str) -> Any:
    """The fixed table of `timscope.data.digest` on a device."""
    import torch

    return torch.from_numpy(row_table().copy()).to(device)
