"""Keys and values of earlier tokens, in pages, so that sequences of any length share one block of memory."""

from __future__ import annotations

import torch
from torch import Tensor

from timscope.replay.fast.weights import Weights

PAGE = 64  # rows a page: one key block of the attention kernel


class Cache:
    """`pages` pages of PAGE rows for every layer. Page 0 is scratch: idle slots of a fixed-size batch write there."""

    def __init__(self, weights: Weights, pages: int) -> None:
        shape = (len(weights.layers), 2, pages * PAGE, weights.kv_heads, weights.dim)
        self.page = PAGE
        self.pages = pages
        self._rows = torch.zeros(shape, dtype=weights.embedding.dtype, device=weights.device)
        self._free = list(range(pages - 1, 0, -1))

    def store(self, layer: int, k: Tensor, v: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Write k and v [T, Hkv, D] at `rows` [T]; returns the layer's whole keys and values [pages * PAGE, Hkv, D]."""
        keys, values = self._rows[layer, 0], self._rows[layer, 1]
        keys.index_copy_(0, rows, k)
        values.index_copy_(0, rows, v)
        return keys, values

    def take(self, count: int) -> list[int] | None:
        """`count` free pages, or None where there are not enough."""
        if count > len(self._free):
            return None
        return [self._free.pop() for _ in range(count)]

    def give(self, pages: list[int]) -> None:
        """Return pages of a finished sequence."""
        self._free.extend(pages)

    @property
    def free(self) -> int:
        """Pages not in use."""
        return len(self._free)
