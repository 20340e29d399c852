"""Gradients of many parameters as a few equal matrices, so that a handful of kernels serves them all.

A model has hundreds of parameters, and launching kernels for each would cost the training thread more than the kernels
cost the device. So gradients are copied, chunk by chunk, into one scratch matrix of float32 rows; every parameter
starts on a new row, and what is left of its last row is zero. Nothing here depends on values, so a layout is made once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# 64 lanes x 127 blocks: the row of the sketch's column signs (see timscope.analysis.formulas.sketch).
LANES, PERIOD = 64, 127
ROW = LANES * PERIOD


@dataclass(frozen=True)
class Piece:
    """A run of one parameter's elements, `start` to `stop`, at row `row` of a chunk."""

    parameter: int
    start: int
    stop: int
    row: int

    @property
    def rows(self) -> int:
        """Rows that the piece takes."""
        return -(-(self.stop - self.start) // ROW)


@dataclass(frozen=True)
class Chunk:
    """What is in the scratch matrix at one time. `split`: lengths of piece, padding, piece, padding, ..."""

    pieces: tuple[Piece, ...]
    rows: int
    first_row: int  # in the matrix that all chunks would make together
    split: tuple[int, ...]

    def fill(self, flats: Sequence[Any], scratch: Any) -> Any:
        """Copy the pieces of `flats` (flat gradients of any float dtype) into `scratch`; returns [rows, ROW]."""
        import torch

        used = scratch[: self.rows * ROW]
        views = used.split(self.split)
        sources = []
        for p in self.pieces:
            flat = flats[p.parameter]
            sources.append(flat if p.stop - p.start == flat.numel() else flat[p.start : p.stop])
        torch._foreach_copy_(list(views[::2]), sources)
        if pads := [view for view, length in zip(views[1::2], self.split[1::2], strict=True) if length]:
            torch._foreach_zero_(pads)
        return used.view(self.rows, ROW)


@dataclass(frozen=True, eq=False)
class Layout:
    """Where everything is; compared by identity, so it can be the key of what is derived from it."""

    names: tuple[str, ...]  # of the parameters, in packed order
    order: tuple[int, ...]  # packed order -> the caller's order
    groups: tuple[str, ...]  # in ascending order
    group: tuple[int, ...]  # group number by parameter, ascending
    group_rows: tuple[int, ...]  # first row by group
    group_sizes: tuple[int, ...]  # elements by group
    chunks: tuple[Chunk, ...]
    rows: int

    @property
    def scratch(self) -> int:
        """Elements of the scratch matrix."""
        return max(chunk.rows for chunk in self.chunks) * ROW


def lay_out(names: Sequence[str], groups: Sequence[str], sizes: Sequence[int], chunk_rows: int) -> Layout:
    """Parameters sorted by group and name, in chunks of at most `chunk_rows` rows. No size may be 0."""
    order = sorted(range(len(names)), key=lambda i: (groups[i], names[i]))
    labels = sorted(set(groups))
    chunks: list[Chunk] = []
    pieces: list[Piece] = []
    first_rows: list[int] = []
    used = done = 0
    for number, size in enumerate(sizes[i] for i in order):
        first_rows.append(done + used)
        start = 0
        while start < size:
            stop = min(size, start + (chunk_rows - used) * ROW)
            pieces.append(Piece(number, start, stop, used))
            used, start = used + pieces[-1].rows, stop
            if used == chunk_rows:
                chunks.append(_chunk(pieces, used, done))
                pieces, used, done = [], 0, done + used
    if pieces:
        chunks.append(_chunk(pieces, used, done))
    members = [[k for k, i in enumerate(order) if groups[i] == label] for label in labels]
    return Layout(
        names=tuple(names[i] for i in order),
        order=tuple(order),
        groups=tuple(labels),
        group=tuple(labels.index(groups[i]) for i in order),
        group_rows=tuple(first_rows[m[0]] for m in members),
        group_sizes=tuple(sum(sizes[order[k]] for k in m) for m in members),
        chunks=tuple(chunks),
        rows=done + used,
    )


def _chunk(pieces: list[Piece], rows: int, first_row: int) -> Chunk:
    split = [n for p in pieces for n in (p.stop - p.start, p.rows * ROW - (p.stop - p.start))]
    return Chunk(tuple(pieces), rows, first_row, tuple(split))
