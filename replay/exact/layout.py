"""Where the queries and keys of a batch lie, as tiles: the one thing attention needs to know about padding and packing.

A layout lists sequences. Each has keys (row numbers in the flattened key tensor, the first real token first, so
padding never shifts a block) and queries, which are its last keys. Queries are cut into tiles of QUERY_TILE, keys
into blocks of KEY_BLOCK counted from the first real token, so a token meets the same blocks in a prefill, a chunk, a
decode step or a training forward. Tiles are grouped by the number of blocks they need, which bounds the memory of one
group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

QUERY_TILE = 16
KEY_BLOCK = 64
GROUP_BUDGET = 256  # query tiles times key blocks handled at once


@dataclass(frozen=True)
class Group:
    """T query tiles that attend to at most J key blocks. Row number -1 means: no row, read as zeros."""

    query_rows: Tensor  # [T, 16] row in the flattened queries
    query_positions: Tensor  # [T, 16] index among the sequence's keys
    key_rows: Tensor  # [T, J * 64] row in the flattened keys


@dataclass(frozen=True)
class Layout:
    """All groups of a batch, and the number of query rows in it."""

    groups: tuple[Group, ...]
    query_count: int


def _tiles(key_rows: Tensor, query_rows: Tensor) -> list[tuple[int, Tensor, Tensor, Tensor]]:
    """(blocks needed, query rows, query positions, the sequence's key rows) of each query tile of one sequence."""
    keys, queries = key_rows.numel(), query_rows.numel()
    result = []
    for start in range(0, queries, QUERY_TILE):
        rows = query_rows[start : start + QUERY_TILE]
        positions = torch.arange(keys - queries + start, keys - queries + start + QUERY_TILE)
        last = keys - queries + start + rows.numel() - 1
        rows = torch.nn.functional.pad(rows, (0, QUERY_TILE - rows.numel()), value=-1)
        result.append((last // KEY_BLOCK + 1, rows, positions, key_rows))
    return result


def make_layout(sequences: Sequence[tuple[Tensor, Tensor]], query_count: int, device: torch.device) -> Layout:
    """Layout of (key_rows, query_rows) pairs, int64 on the CPU; a sequence's queries are its last keys, in order."""
    tiles = [tile for keys, queries in sequences for tile in _tiles(keys, queries)]
    tiles.sort(key=lambda tile: tile[0])
    groups: list[Group] = []
    start = 0
    while start < len(tiles):
        end = start + 1
        while end < len(tiles) and tiles[end][0] * (end + 1 - start) <= GROUP_BUDGET:
            end += 1
        chosen, width = tiles[start:end], tiles[end - 1][0] * KEY_BLOCK
        key_rows = torch.full((len(chosen), width), -1)
        for i, (_, _, _, rows) in enumerate(chosen):
            key_rows[i, : min(width, rows.numel())] = rows[:width]
        group = (torch.stack([t[1] for t in chosen]), torch.stack([t[2] for t in chosen]), key_rows)
        groups.append(Group(*(part.to(device) for part in group)))
        start = end
    return Layout(tuple(groups), query_count)


def packed_layout(lengths: Sequence[int], device: torch.device) -> Layout:
    """Layout of sequences that lie end to end in one row, without padding."""
    sequences, start = [], 0
    for length in lengths:
        rows = torch.arange(start, start + length)
        sequences.append((rows, rows))
        start += length
    return make_layout(sequences, start, device)


def masked_layout(mask: Tensor | None, batch: int, queries: int, keys: int, device: torch.device) -> Layout:
    """Layout of a [batch, queries] forward over [batch, keys] cached and new keys; mask is true on real tokens.

    The queries are the last columns of the keys. Masked queries get an output of zero.
    """
    real = torch.ones(batch, keys, dtype=torch.bool) if mask is None else mask.to("cpu", torch.bool)
    sequences = []
    for b in range(batch):
        key_columns = real[b].nonzero()[:, 0]
        query_columns = key_columns[key_columns >= keys - queries] - (keys - queries)
        sequences.append((key_columns + b * keys, query_columns + b * queries))
    return make_layout(sequences, batch * queries, device)


def restarting_layout(position_ids: Tensor) -> Layout:
    """Layout of rows [B, L] of one or more sequences each: one starts where the positions do not go on by one."""
    device, position_ids = position_ids.device, position_ids.cpu()
    starts = torch.ones_like(position_ids, dtype=torch.bool)
    starts[:, 1:] = position_ids[:, 1:] != position_ids[:, :-1] + 1
    edges = [*starts.reshape(-1).nonzero()[:, 0].tolist(), position_ids.numel()]
    return packed_layout([b - a for a, b in pairwise(edges)], device)
