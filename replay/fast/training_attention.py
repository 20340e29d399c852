"""Rotary embedding, Qwen3's per-head norms and attention as one autograd function over the joined projections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from timscope.replay.fast import elementwise
from timscope.replay.fast.attention import attention
from timscope.replay.fast.attention_backward import attention_backward
from timscope.replay.fast.elementwise_backward import rotate_backward
from timscope.replay.fast.forward import Batch


@dataclass(frozen=True)
class Heads:
    """What a model's config says of its heads; cos and sin [positions, D / 2] in `rotary`."""

    q: int
    kv: int
    dim: int
    eps: float
    rotary: tuple[Tensor, Tensor]


class _Mixed(Function):
    @staticmethod
    def forward(ctx: Any, raw: Tensor, heads: Heads, batch: Batch, *norms: Tensor) -> Tensor:
        qkv = raw.clone()  # the rotation is in place, and autograd owns the projection's output
        pair = (norms[0], norms[1]) if norms else None
        elementwise.rotate(qkv, heads.rotary, batch.positions, heads.q, heads.kv, heads.dim, pair, heads.eps)
        split = qkv.view(-1, heads.q + 2 * heads.kv, heads.dim)
        q, k, v = split.split([heads.q, heads.kv, heads.kv], 1)
        lse = torch.empty(heads.q, qkv.shape[0], dtype=torch.float32, device=qkv.device)
        out = attention(q, k, v, batch.starts, batch.lengths, batch.longest, lse=lse)
        ctx.heads, ctx.batch = heads, batch
        ctx.save_for_backward(split, out, lse, *((raw, *norms) if norms else ()))
        return out.view(qkv.shape[0], -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        split, out, lse, *rest = ctx.saved_tensors
        heads, batch = ctx.heads, ctx.batch
        d_split = attention_backward(
            split, out, grad.contiguous().view(out.shape), lse, batch.starts, batch.longest, heads.kv
        )
        d_raw = d_split.view(split.shape[0], -1)
        raw, norms = (rest[0], (rest[1], rest[2])) if rest else (None, None)
        gains = rotate_backward(
            d_raw, raw, heads.rotary, batch.positions, heads.q, heads.kv, heads.dim, norms, heads.eps
        )
        return (d_raw, None, None, *(gains or ()))


def mixed(raw: Tensor, heads: Heads, batch: Batch, norms: tuple[Tensor, Tensor] | None) -> Tensor:
    """Attention's output [T, Hq D] from the projections' outputs [T, (Hq + 2 Hkv) D], whole sequences end to end."""
    result: Tensor = _Mixed.apply(raw, heads, batch, *(norms or ()))
    return result
