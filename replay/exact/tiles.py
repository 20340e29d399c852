"""Size-independent element-wise functions and sums.

ATen runs most of a tensor through a vectorised body and its flat tail through scalar code, and it splits large tensors
over threads, which makes more tails. silu, exp, log, cos and others give different bits in body and tail, so a value's
result depends on how many values stand around it. Here every such function sees full tiles of one constant size, small
enough to stay on one thread: body only, always.

Sums are written as a tree of element-wise additions. An IEEE addition is correctly rounded wherever it runs, so the
order of the tree alone fixes the bits: no batch size, thread count or device can change them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Below ATen's grain size of 32,768 (one thread) and a multiple of every vector width and unroll.
ELEMENT_TILE = 16_384

ElementWise = Callable[[Tensor], Tensor]


def _full_tiles(function: ElementWise, x: Tensor) -> Tensor:
    flat = x.contiguous().view(-1)
    count = flat.numel()
    whole = count - count % ELEMENT_TILE
    out = torch.empty_like(flat)
    for start in range(0, whole, ELEMENT_TILE):
        out[start : start + ELEMENT_TILE] = function(flat[start : start + ELEMENT_TILE])
    if whole < count:
        last = flat.new_ones(ELEMENT_TILE)
        last[: count - whole] = flat[whole:]
        out[whole:] = function(last)[: count - whole]
    return out.view(x.shape)


class _Tiled(torch.autograd.Function):
    """Forward in full tiles; backward is the plain derivative of the same function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: ElementWise) -> Tensor:
        ctx.save_for_backward(x)
        ctx.function = function
        return _full_tiles(function, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            (grad,) = torch.autograd.grad(ctx.function(leaf), leaf, grads[0])
        return grad, None


def tiled(function: ElementWise, x: Tensor) -> Tensor:
    """Apply an element-wise `function` to `x` of any shape, in full tiles of ELEMENT_TILE values. Differentiable."""
    if torch.is_grad_enabled() and x.requires_grad:
        result: Tensor = _Tiled.apply(x, function)  # type: ignore[no-untyped-call]
        return result
    return _full_tiles(function, x)


def _tree(x: Tensor) -> Tensor:
    while (width := x.shape[-1]) > 1:
        half = (width + 1) // 2
        upper = x[..., half:]
        if half == width - half:
            x = x[..., :half] + upper
        else:  # the middle value of an odd width has no partner
            x = torch.cat([x[..., : half - 1] + upper, x[..., half - 1 : half]], dim=-1)
    return x


class _TreeSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.width = x.shape[-1]
        return _tree(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].expand(*grads[0].shape[:-1], ctx.width)


def tree_sum(x: Tensor) -> Tensor:
    """Sum of the last dimension, kept as size 1: first half plus second half, again and again. Differentiable."""
    if torch.is_grad_enabled() and x.requires_grad:
        result: Tensor = _TreeSum.apply(x)  # type: ignore[no-untyped-call]
        return result
    return _tree(x)
