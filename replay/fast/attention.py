"""Causal attention with fixed key blocks: one kernel for packed prefill, chunks and decoding over a paged cache.

Queries are cut into tiles of TILE counted from the sequence's first token, keys into blocks of BLOCK likewise, and the
blocks are folded in order with a running maximum. A token therefore meets the same blocks in the same tile row whether
it is scored in a prefill or decoded alone; blocks after its own position add an exact zero.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 128
BLOCK = 64
LOG2E = 1.4426950408889634


@triton.jit
def _fold(
    query, top, mass, total, position, start, keys, MASKED: tl.constexpr,
    k, v, kv_start, table, sequence, kv_head, scale, sk, sv, table_width,
    D: tl.constexpr, BLOCK: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Fold one block of keys into the running maximum, mass and weighted sum of a tile."""
    at, columns = start + tl.arange(0, BLOCK), tl.arange(0, D)
    if PAGE > 0:
        page = tl.load(table + sequence * table_width + start // PAGE).to(tl.int64)
        base = page * PAGE + start % PAGE + tl.arange(0, BLOCK)
    else:
        base = tl.load(kv_start + sequence).to(tl.int64) + at
    k_place = k + base[None, :] * sk + kv_head * D + columns[:, None]
    v_place = v + base[:, None] * sv + kv_head * D + columns[None, :]
    if MASKED:
        there = at < keys
        key, value = tl.load(k_place, there[None, :], other=0.0), tl.load(v_place, there[:, None], other=0.0)
        score = tl.dot(query, key, input_precision="ieee") * scale
        score = tl.where(at[None, :] <= position[:, None], score, float("-inf"))
    else:
        key, value = tl.load(k_place), tl.load(v_place)
        score = tl.dot(query, key, input_precision="ieee") * scale
    new = tl.maximum(top, tl.max(score, 1))
    weight = tl.exp2(score - new[:, None])
    shrink = tl.exp2(top - new)
    total = tl.dot(weight.to(value.dtype), value, total * shrink[:, None], input_precision="ieee")
    return new, mass * shrink + tl.sum(weight, 1), total


@triton.jit
def _attention_kernel(
    q, k, v, out, lse, q_start, kv_length, kv_start, table, scale,
    sq, sk, sv, so, table_width, rows,
    REPEAT: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr, PAGE: tl.constexpr,
    LSE: tl.constexpr,
):  # fmt: skip
    # Later tiles have more keys: start them first, so that the last wave is short.
    nth = tl.num_programs(0) - 1 - tl.program_id(0)
    head, sequence = tl.program_id(1), tl.program_id(2)
    begin, end = tl.load(q_start + sequence), tl.load(q_start + sequence + 1)
    keys = tl.load(kv_length + sequence)
    first = keys - (end - begin)  # position of the first query
    tile = first // TILE + nth
    if tile * TILE < keys:
        position = tile * TILE + tl.arange(0, TILE)
        row = (begin + position - first).to(tl.int64)
        wanted = (position >= first) & (position < keys)
        columns = tl.arange(0, D)
        query = tl.load(q + row[:, None] * sq + head * D + columns[None, :], wanted[:, None], other=0.0)
        kv_head = head // REPEAT
        top = tl.full((TILE,), float("-inf"), tl.float32)
        mass = tl.zeros((TILE,), tl.float32)
        total = tl.zeros((TILE, D), tl.float32)
        # Blocks below the tile are visible to every query of it; only the tile's own blocks need the causal mask.
        for start in range(0, tile * TILE, BLOCK):
            top, mass, total = _fold(
                query, top, mass, total, position, start, keys, False,
                k, v, kv_start, table, sequence, kv_head, scale, sk, sv, table_width, D, BLOCK, PAGE,
            )  # fmt: skip
        for start in range(tile * TILE, tl.minimum(tile * TILE + TILE, keys), BLOCK):
            top, mass, total = _fold(
                query, top, mass, total, position, start, keys, True,
                k, v, kv_start, table, sequence, kv_head, scale, sk, sv, table_width, D, BLOCK, PAGE,
            )  # fmt: skip
        result = total / mass[:, None]
        tl.store(
            out + row[:, None] * so + head * D + columns[None, :], result.to(out.dtype.element_ty), wanted[:, None]
        )
        if LSE:
            tl.store(lse + head.to(tl.int64) * rows + row, top + tl.log2(mass), wanted)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_start: Tensor,
    kv_length: Tensor,
    longest: int,
    *,
    kv_start: Tensor | None = None,
    table: Tensor | None = None,
    page: int = 0,
    lse: Tensor | None = None,
) -> Tensor:
    """q [T, Hq, D] of S sequences end to end -> [T, Hq, D]; a sequence's queries are the last of its keys.

    `q_start` [S + 1] int32, `kv_length` [S] int32; `longest`: an upper bound of query tiles' span (queries a sequence).
    Keys and values are [rows, Hkv, D]: packed, from row `kv_start` [S] on, or in pages of `page` rows (a multiple of
    BLOCK) named by `table` [S, pages]. `lse` [Hq, T] float32, where given, takes each query's log2 of the summed
    2^score, which a backward pass needs; it changes no bit of the output.
    """
    heads, dim = q.shape[1], q.shape[2]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    # A chunk of n queries may straddle one tile more than n fills.
    tiles = triton.cdiv(longest, TILE) + (0 if table is None or longest == 1 else 1)
    _attention_kernel[(tiles, heads, q_start.numel() - 1)](
        q, k, v, out, lse if lse is not None else out,
        q_start, kv_length, kv_start if kv_start is not None else q_start,
        table if table is not None else q_start, dim**-0.5 * LOG2E,
        q.stride(0), k.stride(0), v.stride(0), out.stride(0), table.shape[1] if table is not None else 0,
        q.shape[0] if lse is not None else 0, heads // k.shape[1], dim, TILE, BLOCK, page, lse is not None,
        num_warps=8 if dim > 64 else 4, num_stages=3 if q.element_size() == 2 else 1,
    )  # fmt: skip
    return out
