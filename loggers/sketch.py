"""The count-sketch of gradients in torch, on the device where they are: no synchronisation, no atomics, no randomness.

The definition is `timscope.analysis.formulas.sketch`; here it runs on the packed rows of `packing`. A block of 64
elements goes, times its sign, to one of `buckets` cells of 64 lanes; this is a gather of rows by a sorted index, which
is what an embedding bag does, in an order that never changes. Lane k of cell h then belongs to bucket h - k: one
strided sum. The index is made on the device the first time and kept: 5 bytes for 64 elements.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from timscope.loggers.packing import LANES, ROW, Chunk, Layout

METHOD = "blocks-64x127"
_KEPT = 2  # layouts whose index is kept; a model whose set of gradients changes from step to step rebuilds it


@dataclass(frozen=True)
class SketchPlan:
    """Size and seed of the sketches of a run. ValueError: buckets is not a power of two in 64..65536."""

    buckets: int = 4096
    seed: int = 0
    _cache: dict[Any, list[Bags]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _columns: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 64 <= self.buckets <= 65_536 or self.buckets & (self.buckets - 1):
            raise ValueError(f"a sketch of {self.buckets} buckets: take a power of two from 64 to 65536")

    def manifest(self) -> dict[str, Any]:
        """Fields of `timscope.data.manifest.Sketch`."""
        return {"buckets": self.buckets, "seed": self.seed, "method": METHOD}

    def columns(self, device: Any) -> Any:
        """The column signs, [ROW], float32 on `device`."""
        if device not in self._columns:
            import torch

            index = torch.arange(ROW, device=device)
            self._columns[device] = _signs(_words(_key(str(self.seed)), index)).float()
        return self._columns[device]

    def bags(self, layout: Layout, device: Any) -> list[Bags]:
        """The sorted index of every chunk."""
        key = (layout, device)
        if key not in self._cache:
            if len(self._cache) >= _KEPT:
                self._cache.pop(next(iter(self._cache)))
            self._cache[key] = [self._sorted(chunk, layout, device) for chunk in layout.chunks]
        return self._cache[key]

    def _sorted(self, chunk: Chunk, layout: Layout, device: Any) -> Bags:
        import torch

        group = layout.group
        first = group[chunk.pieces[0].parameter]
        number = group[chunk.pieces[-1].parameter] - first + 1
        cells, places, signs = [], [], []
        for p in chunk.pieces:
            block = torch.arange(p.start // LANES, -(-p.stop // LANES), device=device)
            word = _words(_key(f"{self.seed}:{layout.names[p.parameter]}"), block)
            cells.append((word & (self.buckets - 1)) + (group[p.parameter] - first) * self.buckets)
            signs.append(_signs(word))
            places.append(block + (p.row * ROW - p.start) // LANES)
        cell, order = torch.sort(torch.cat(cells), stable=True)
        edges = torch.searchsorted(cell, torch.arange(number * self.buckets + 1, device=device), out_int32=True)
        return Bags(first, number, torch.cat(places)[order].int(), torch.cat(signs)[order].to(torch.int8), edges)


@dataclass(frozen=True)
class Bags:
    """One chunk's blocks sorted by (group, cell). `edges`: where each cell's blocks begin, int32."""

    first: int  # group number
    groups: int
    place: Any  # [blocks] int32: block of the packed chunk
    sign: Any  # [blocks] int8
    edges: Any  # [groups * buckets + 1]

    def add(self, matrix: Any, sketch: Any) -> None:
        """Add the sketch of the packed chunk [rows, ROW], column signs applied, to `sketch` [all groups, buckets]."""
        import torch

        buckets = sketch.shape[1]
        cells = torch.embedding_bag(
            matrix.view(-1, LANES),
            self.place,
            self.edges,
            per_sample_weights=self.sign.to(matrix.dtype),
            include_last_offset=True,
        )[0].view(self.groups, buckets, LANES)
        # bucket j is the sum over lanes k of cell j + k (mod buckets): a diagonal, so one more stride.
        around = torch.cat([cells, cells[:, : LANES - 1]], 1)
        diagonal = around.as_strided(cells.shape, (around.stride(0), LANES, LANES + 1))
        sketch[self.first : self.first + self.groups] += diagonal.sum(-1)


def rounded(sketch: NDArray[np.float32]) -> NDArray[np.float32]:
    """Float32 with the precision of bfloat16 (8 significant bits, to nearest even): half the bytes once compressed."""
    bits = np.ascontiguousarray(sketch, np.float32).view(np.uint32)
    kept = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(sketch), kept.view(np.float32), sketch)


def _key(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def _words(key: int, index: Any) -> Any:
    """splitmix64 of `key` and int64 `index`; int64 arithmetic wraps, only right shifts need a mask."""
    x = (index + 1) * _signed(0x9E3779B97F4A7C15) + key
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * _signed(0x94D049BB133111EB)
    return x ^ ((x >> 31) & ((1 << 33) - 1))


def _signed(constant: int) -> int:
    return constant - (1 << 64) if constant >> 63 else constant


def _signs(word: Any) -> Any:
    return 1 - 2 * (word < 0).int()
