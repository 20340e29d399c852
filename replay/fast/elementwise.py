"""Element-wise kernels of a Llama-like block, fused, with the rounding steps of the transformers classes.

Each program owns whole rows and reduces them in one fixed tree, so a row's bits never depend on its neighbours. Shapes:
T rows (tokens, packed), H hidden, I intermediate, D head size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _norm_kernel(x, residual, weight, total, out, eps, width, BLOCK: tl.constexpr, ADD: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    value = tl.load(x + row * width + columns, inside, other=0.0)
    if ADD:
        before = tl.load(residual + row * width + columns, inside, other=0.0)
        value = (before.to(tl.float32) + value.to(tl.float32)).to(value.dtype)
        tl.store(total + row * width + columns, value, inside)
    high = value.to(tl.float32)
    variance = tl.sum(high * high, 0) / width
    scaled = (high * (1.0 / tl.sqrt_rn(variance + eps))).to(value.dtype)
    gain = tl.load(weight + columns, inside, other=0.0)
    result = gain.to(tl.float32) * scaled.to(tl.float32)
    tl.store(out + row * width + columns, result.to(value.dtype), inside)


def _warps(block: int) -> int:
    return 4 if block <= 2048 else 8 if block <= 8192 else 16


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [T, H], weight [H] -> [T, H]: normalised in float32, rounded to x's dtype, then times the weight."""
    out = torch.empty_like(x)
    block = triton.next_power_of_2(x.shape[1])
    _norm_kernel[(x.shape[0],)](x, x, weight, x, out, eps, x.shape[1], block, False, num_warps=_warps(block))
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(norm(residual + x), residual + x), both [T, H]; the sum is rounded once and overwrites `residual`."""
    out = torch.empty_like(x)
    block = triton.next_power_of_2(x.shape[1])
    arguments = (x, residual, weight, residual, out, eps, x.shape[1], block, True)
    _norm_kernel[(x.shape[0],)](*arguments, num_warps=_warps(block))
    return out, residual


@triton.jit
def _rotate_kernel(
    qkv, cos, sin, position, q_gain, k_gain, eps, stride,
    HEADS: tl.constexpr, Q_HEADS: tl.constexpr, BLOCK: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    heads = tl.arange(0, BLOCK)[:, None]
    columns = tl.arange(0, HALF)[None, :]
    inside = heads < HEADS
    place = qkv + row * stride + heads * (2 * HALF) + columns
    low = tl.load(place, inside, other=0.0)
    high = tl.load(place + HALF, inside, other=0.0)
    kind = low.dtype
    if NORM:
        a, b = low.to(tl.float32), high.to(tl.float32)
        variance = (tl.sum(a * a, 1) + tl.sum(b * b, 1)) / (2 * HALF)
        scale = (1.0 / tl.sqrt_rn(variance + eps))[:, None]
        is_q = heads < Q_HEADS
        gain_low = tl.where(is_q, tl.load(q_gain + columns).to(tl.float32), tl.load(k_gain + columns).to(tl.float32))
        gain_high = tl.where(
            is_q, tl.load(q_gain + HALF + columns).to(tl.float32), tl.load(k_gain + HALF + columns).to(tl.float32)
        )
        low = (gain_low * (a * scale).to(kind).to(tl.float32)).to(kind)
        high = (gain_high * (b * scale).to(kind).to(tl.float32)).to(kind)
    at = tl.load(position + row).to(tl.int64)
    c = tl.load(cos + at * HALF + columns).to(tl.float32)
    s = tl.load(sin + at * HALF + columns).to(tl.float32)
    a, b = low.to(tl.float32), high.to(tl.float32)
    new_low = (a * c).to(kind).to(tl.float32) + (-b * s).to(kind).to(tl.float32)
    new_high = (b * c).to(kind).to(tl.float32) + (a * s).to(kind).to(tl.float32)
    tl.store(place, new_low.to(kind), inside)
    tl.store(place + HALF, new_high.to(kind), inside)


def rotate(
    qkv: Tensor,
    tables: tuple[Tensor, Tensor],
    positions: Tensor,
    q_heads: int,
    kv_heads: int,
    dim: int,
    norms: tuple[Tensor, Tensor] | None = None,
    eps: float = 0.0,
) -> None:
    """Rotary embedding of q and k inside qkv [T, (Hq + 2 Hkv) D], in place, after Qwen3's per-head norm where given.

    `tables`: cos and sin [P, D / 2] in qkv's dtype, by position; `positions` [T].
    """
    heads = q_heads + kv_heads
    block = triton.next_power_of_2(heads)
    q_gain, k_gain = norms if norms is not None else (qkv, qkv)
    _rotate_kernel[(qkv.shape[0],)](
        qkv, tables[0], tables[1], positions, q_gain, k_gain, eps, qkv.stride(0),
        heads, q_heads, block, dim // 2, norms is not None, num_warps=4,
    )  # fmt: skip


@triton.jit
def _swiglu_kernel(gate_up, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gate = tl.load(gate_up + row * 2 * width + columns, inside, other=0.0)
    up = tl.load(gate_up + row * 2 * width + width + columns, inside, other=0.0)
    high = gate.to(tl.float32)
    active = (high / (1.0 + tl.exp(-high))).to(gate.dtype)
    tl.store(out + row * width + columns, (active.to(tl.float32) * up.to(tl.float32)).to(gate.dtype), inside)


def swiglu(gate_up: Tensor) -> Tensor:
    """gate_up [T, 2 I] -> silu(gate) * up [T, I], silu in float32 and rounded before the product."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    block = min(triton.next_power_of_2(width), 2048)
    _swiglu_kernel[(rows, triton.cdiv(width, block))](gate_up, out, width, block, num_warps=4)
    return out
