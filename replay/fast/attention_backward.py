"""Gradients of the packed causal attention: one kernel for the queries', one for the keys' and values'.

Each program owns a tile of the gradient and folds what reaches it in a fixed order, so no two programs add to one
place and two backward passes give equal bits. Weights are recomputed from the log-sum-exp that the forward saved. A
program of the second kernel walks over all query heads that share its key head, in order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from timscope.replay.fast.attention import LOG2E


@triton.jit
def _delta_kernel(out, d_out, delta, rows, HEADS: tl.constexpr, BLOCK: tl.constexpr, D: tl.constexpr):
    """sum(out * d_out) of each row and head: what the softmax takes from every score's gradient."""
    row = tl.program_id(0).to(tl.int64)
    heads, columns = tl.arange(0, BLOCK), tl.arange(0, D)
    inside = heads < HEADS
    place = row * HEADS * D + heads[:, None] * D + columns[None, :]
    a, b = tl.load(out + place, inside[:, None], other=0.0), tl.load(d_out + place, inside[:, None], other=0.0)
    tl.store(delta + heads.to(tl.int64) * rows + row, tl.sum(a.to(tl.float32) * b.to(tl.float32), 1), inside)


@triton.jit
def _query_kernel(
    q, k, v, d_out, lse, delta, dq, starts, scale, natural, stride, so, rows,
    REPEAT: tl.constexpr, D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    nth = tl.num_programs(0) - 1 - tl.program_id(0)  # the longest work first
    head, sequence = tl.program_id(1), tl.program_id(2)
    begin, end = tl.load(starts + sequence), tl.load(starts + sequence + 1)
    length = end - begin
    if nth * QUERIES < length:
        columns = tl.arange(0, D)
        position = nth * QUERIES + tl.arange(0, QUERIES)
        wanted = position < length
        row = (begin + position).to(tl.int64)
        place = row[:, None] * stride + head * D + columns[None, :]
        query = tl.load(q + place, wanted[:, None], other=0.0)
        grad = tl.load(d_out + row[:, None] * so + head * D + columns[None, :], wanted[:, None], other=0.0)
        mass = tl.load(lse + head.to(tl.int64) * rows + row, wanted, other=0.0)
        shared = tl.load(delta + head.to(tl.int64) * rows + row, wanted, other=0.0)
        total = tl.zeros((QUERIES, D), tl.float32)
        for start in range(0, tl.minimum(nth * QUERIES + QUERIES, length), KEYS):
            at = start + tl.arange(0, KEYS)
            there = at < length
            source = (begin + at).to(tl.int64)[:, None] * stride + head // REPEAT * D + columns[None, :]
            key = tl.load(k + source, there[:, None], other=0.0)
            value = tl.load(v + source, there[:, None], other=0.0)
            weight = tl.exp2(tl.dot(query, tl.trans(key), input_precision="ieee") * scale - mass[:, None])
            weight = tl.where(at[None, :] <= position[:, None], weight, 0.0)
            slope = weight * (tl.dot(grad, tl.trans(value), input_precision="ieee") - shared[:, None])
            total = tl.dot(slope.to(key.dtype), key, total, input_precision="ieee")
        tl.store(dq + place, (total * natural).to(dq.dtype.element_ty), wanted[:, None])


@triton.jit
def _key_kernel(
    q, k, v, d_out, lse, delta, dk, dv, starts, scale, natural, stride, so, rows,
    REPEAT: tl.constexpr, D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    tile, kv_head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin, end = tl.load(starts + sequence), tl.load(starts + sequence + 1)
    length = end - begin
    if tile * KEYS < length:
        columns = tl.arange(0, D)
        at = tile * KEYS + tl.arange(0, KEYS)
        there = at < length
        place = (begin + at).to(tl.int64)[:, None] * stride + kv_head * D + columns[None, :]
        key = tl.load(k + place, there[:, None], other=0.0)
        value = tl.load(v + place, there[:, None], other=0.0)
        d_key = tl.zeros((KEYS, D), tl.float32)
        d_value = tl.zeros((KEYS, D), tl.float32)
        for nth in range(0, REPEAT):
            head = kv_head * REPEAT + nth
            for start in range(tile * KEYS // QUERIES * QUERIES, length, QUERIES):
                position = start + tl.arange(0, QUERIES)
                wanted = position < length
                row = (begin + position).to(tl.int64)
                source = row[:, None] * stride + head * D + columns[None, :]
                query = tl.load(q + source, wanted[:, None], other=0.0)
                grad = tl.load(d_out + row[:, None] * so + head * D + columns[None, :], wanted[:, None], other=0.0)
                saved = kv_head.to(tl.int64) * REPEAT * rows + nth * rows + row
                mass = tl.load(lse + saved, wanted, other=0.0)
                shared = tl.load(delta + saved, wanted, other=0.0)
                weight = tl.exp2(tl.dot(key, tl.trans(query), input_precision="ieee") * scale - mass[None, :])
                weight = tl.where((at[:, None] <= position[None, :]) & wanted[None, :], weight, 0.0)
                d_value = tl.dot(weight.to(grad.dtype), grad, d_value, input_precision="ieee")
                slope = weight * (tl.dot(value, tl.trans(grad), input_precision="ieee") - shared[None, :])
                d_key = tl.dot(slope.to(query.dtype), query, d_key, input_precision="ieee")
        tl.store(dk + place, (d_key * natural).to(dk.dtype.element_ty), there[:, None])
        tl.store(dv + place, d_value.to(dv.dtype.element_ty), there[:, None])


def _tiles(dim: int, itemsize: int) -> tuple[int, int]:
    """(owned, walked): rows of the tile that a program owns, and of those it walks over; what shared memory holds."""
    owned, walked = (128, 64) if dim <= 128 else (64, 32)
    return (owned, walked) if itemsize == 2 else (owned // 2, walked // 2)


def attention_backward(
    qkv: Tensor, out: Tensor, d_out: Tensor, lse: Tensor, starts: Tensor, longest: int, kv_heads: int
) -> Tensor:
    """Gradient of attention over qkv [T, Hq + 2 Hkv, D], whole sequences from position 0, end to end.

    `out`, `d_out` [T, Hq, D], contiguous; `lse` [Hq, T] as the forward gave it; `starts` [S + 1] int32.
    """
    rows, heads, dim = out.shape
    grad = torch.empty_like(qkv)
    q, k, v = qkv.split([heads, kv_heads, kv_heads], 1)
    dq, dk, dv = grad.split([heads, kv_heads, kv_heads], 1)
    delta = torch.empty_like(lse)
    block = triton.next_power_of_2(heads)
    _delta_kernel[(rows,)](out, d_out, delta, rows, heads, block, dim, num_warps=4)
    owned, walked = _tiles(dim, qkv.element_size())
    natural, sequences = dim**-0.5, starts.numel() - 1
    numbers = (natural * LOG2E, natural, qkv.stride(0), d_out.stride(0), rows)
    warps = 8 if dim > 64 else 4
    _query_kernel[(triton.cdiv(longest, owned), heads, sequences)](
        q, k, v, d_out, lse, delta, dq, starts, *numbers,
        heads // kv_heads, dim, owned, walked, num_warps=warps, num_stages=2,
    )  # fmt: skip
    _key_kernel[(triton.cdiv(longest, owned), kv_heads, sequences)](
        q, k, v, d_out, lse, delta, dk, dv, starts, *numbers,
        heads // kv_heads, dim, walked, owned, num_warps=warps, num_stages=2,
    )  # fmt: skip
    return grad
