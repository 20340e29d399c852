"""Gradients of the element-wise kernels. A program owns a fixed run of rows and sums over them in order; the runs'
sums, where a weight needs them, are added by one torch.sum. No atomics: two backward passes give equal bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from timscope.replay.fast.elementwise import _warps

ROWS = 32  # rows a program: few enough to fill a device, many enough that the runs' sums stay small


@triton.jit
def _norm_kernel(
    x, weight, d_out, d_total, dx, sums, eps, rows, width, ROWS: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr
):
    first = tl.program_id(0).to(tl.int64) * ROWS
    columns = tl.arange(0, BLOCK)
    gain = tl.load(weight + columns, columns < width, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(0, ROWS):
        inside = (columns < width) & (first + i < rows)
        place = (first + i) * width + columns
        value = tl.load(x + place, inside, other=0.0)
        grad = tl.load(d_out + place, inside, other=0.0).to(tl.float32)
        high = value.to(tl.float32)
        scale = 1.0 / tl.sqrt_rn(tl.sum(high * high, 0) / width + eps)
        hat = high * scale
        total += grad * hat.to(value.dtype).to(tl.float32)
        grad *= gain
        result = scale * (grad - hat * (tl.sum(grad * hat, 0) / width))
        if ADD:
            result += tl.load(d_total + place, inside, other=0.0).to(tl.float32)
        tl.store(dx + place, result.to(value.dtype), inside)
    tl.store(sums + tl.program_id(0).to(tl.int64) * width + columns, total, columns < width)


def rms_norm_backward(
    x: Tensor, weight: Tensor, eps: float, d_out: Tensor, d_total: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(gradient of x [T, H], of the weight [H]) of out = norm(x) and of x's own use, whose gradient is `d_total`."""
    rows, width = x.shape
    programs, block = triton.cdiv(rows, ROWS), triton.next_power_of_2(width)
    dx, sums = torch.empty_like(x), torch.empty(programs, width, dtype=torch.float32, device=x.device)
    _norm_kernel[(programs,)](
        x, weight, d_out, x if d_total is None else d_total, dx, sums, eps, rows, width,
        ROWS, block, d_total is not None, num_warps=_warps(block),
    )  # fmt: skip
    return dx, sums.sum(0).to(weight.dtype)


@triton.jit
def _rotate_kernel(
    grad, qkv, cos, sin, position, q_gain, k_gain, sums, eps, rows, stride,
    HEADS: tl.constexpr, Q_HEADS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, HALF: tl.constexpr,
    NORM: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64) * ROWS
    heads = tl.arange(0, BLOCK)[:, None]
    columns = tl.arange(0, HALF)
    is_q = heads < Q_HEADS
    q_low, q_high = tl.zeros((HALF,), tl.float32), tl.zeros((HALF,), tl.float32)
    k_low, k_high = tl.zeros((HALF,), tl.float32), tl.zeros((HALF,), tl.float32)
    for i in range(0, ROWS):
        row = first + i
        inside = (heads < HEADS) & (row < rows)
        place = row * stride + heads * (2 * HALF) + columns[None, :]
        low = tl.load(grad + place, inside, other=0.0).to(tl.float32)
        high = tl.load(grad + place + HALF, inside, other=0.0).to(tl.float32)
        at = tl.load(position + row, row < rows, other=0).to(tl.int64)
        c = tl.load(cos + at * HALF + columns).to(tl.float32)[None, :]
        s = tl.load(sin + at * HALF + columns).to(tl.float32)[None, :]
        a, b = low * c + high * s, high * c - low * s
        if NORM:
            x = tl.load(qkv + place, inside, other=0.0)
            y = tl.load(qkv + place + HALF, inside, other=0.0)
            kind = x.dtype
            x, y = x.to(tl.float32), y.to(tl.float32)
            scale = (1.0 / tl.sqrt_rn((tl.sum(x * x, 1) + tl.sum(y * y, 1)) / (2 * HALF) + eps))[:, None]
            x, y = x * scale, y * scale
            share_low, share_high = a * x.to(kind).to(tl.float32), b * y.to(kind).to(tl.float32)
            q_low += tl.sum(tl.where(is_q, share_low, 0.0), 0)
            q_high += tl.sum(tl.where(is_q, share_high, 0.0), 0)
            k_low += tl.sum(tl.where(is_q, 0.0, share_low), 0)
            k_high += tl.sum(tl.where(is_q, 0.0, share_high), 0)
            gain = tl.where(is_q, tl.load(q_gain + columns)[None, :], tl.load(k_gain + columns)[None, :])
            a *= gain.to(tl.float32)
            gain = tl.where(is_q, tl.load(q_gain + HALF + columns)[None, :], tl.load(k_gain + HALF + columns)[None, :])
            b *= gain.to(tl.float32)
            mean = ((tl.sum(a * x, 1) + tl.sum(b * y, 1)) / (2 * HALF))[:, None]
            a, b = scale * (a - x * mean), scale * (b - y * mean)
        tl.store(grad + place, a.to(grad.dtype.element_ty), inside)
        tl.store(grad + place + HALF, b.to(grad.dtype.element_ty), inside)
    if NORM:
        out = sums + tl.program_id(0).to(tl.int64) * (4 * HALF) + columns
        tl.store(out, q_low)
        tl.store(out + HALF, q_high)
        tl.store(out + 2 * HALF, k_low)
        tl.store(out + 3 * HALF, k_high)


def rotate_backward(
    grad: Tensor,
    qkv: Tensor | None,
    tables: tuple[Tensor, Tensor],
    positions: Tensor,
    q_heads: int,
    kv_heads: int,
    dim: int,
    norms: tuple[Tensor, Tensor] | None = None,
    eps: float = 0.0,
) -> tuple[Tensor, Tensor] | None:
    """Turn `grad` [T, (Hq + 2 Hkv) D] of the rotated values into that of the projections' outputs, in place.

    With Qwen3's norms, `qkv` is what was rotated, before it was; returns the gradients of both norms' weights.
    """
    rows = grad.shape[0]
    block, programs = triton.next_power_of_2(q_heads + kv_heads), triton.cdiv(rows, ROWS)
    sums = torch.empty(programs, 2, dim, dtype=torch.float32, device=grad.device)
    q_gain, k_gain = norms if norms is not None else (grad, grad)
    _rotate_kernel[(programs,)](
        grad, grad if qkv is None else qkv, tables[0], tables[1], positions, q_gain, k_gain, sums, eps, rows,
        grad.stride(0), q_heads + kv_heads, q_heads, ROWS, block, dim // 2, norms is not None, num_warps=4,
    )  # fmt: skip
    if norms is None:
        return None
    total = sums.sum(0).to(q_gain.dtype)
    return total[0], total[1]


@triton.jit
def _swiglu_kernel(gate_up, d_out, grad, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    place = row * 2 * width + columns
    gate = tl.load(gate_up + place, inside, other=0.0)
    up = tl.load(gate_up + place + width, inside, other=0.0).to(tl.float32)
    given = tl.load(d_out + row * width + columns, inside, other=0.0).to(tl.float32)
    high = gate.to(tl.float32)
    share = 1.0 / (1.0 + tl.exp(-high))
    active = (high * share).to(gate.dtype).to(tl.float32)
    slope = share * (1.0 + high * (1.0 - share))
    tl.store(grad + place, (given * up * slope).to(gate.dtype), inside)
    tl.store(grad + place + width, (given * active).to(gate.dtype), inside)


def swiglu_backward(gate_up: Tensor, d_out: Tensor) -> Tensor:
    """Gradient [T, 2 I] of gate_up from that of silu(gate) * up [T, I]."""
    rows, width = d_out.shape
    grad = torch.empty_like(gate_up)
    block = min(triton.next_power_of_2(width), 2048)
    _swiglu_kernel[(rows, triton.cdiv(width, block))](gate_up, d_out, grad, width, block, num_warps=4)
    return grad
