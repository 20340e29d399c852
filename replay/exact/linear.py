"""Linear layers whose rows do not depend on how many rows there are.

A GEMM library picks its kernel, and with it the order of the sum over K, by the number of rows M. The definition here
is one call per tile of exactly ROW_TILE rows, padded with zeros. Where the wider tile of WIDE_TILE rows is bit-equal
to that definition on this machine, the plan uses it, because it reads the weights once for sixteen times as many
rows. The plan is measured, per shape, dtype, device and thread count, on first use; it changes the speed and never
the bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

ROW_TILE = 16
WIDE_TILE = 256


def tile_rows(x: Tensor, weight: Tensor, bias: Tensor | None, wide: bool = False) -> Tensor:
    """x [rows, K] times weight [N, K] transposed, in tiles of constant height; zero rows fill the last tile."""
    rows = x.shape[0]
    out = x.new_empty((rows, weight.shape[0]))
    start = 0
    if wide:
        while rows - start >= WIDE_TILE:
            out[start : start + WIDE_TILE] = linear(x[start : start + WIDE_TILE], weight, bias)
            start += WIDE_TILE
    while rows - start >= ROW_TILE:
        out[start : start + ROW_TILE] = linear(x[start : start + ROW_TILE], weight, bias)
        start += ROW_TILE
    if start < rows:
        last = x.new_zeros((ROW_TILE, x.shape[1]))
        last[: rows - start] = x[start:]
        out[start:] = linear(last, weight, bias)[: rows - start]
    return out


class _TiledLinear(torch.autograd.Function):
    """Forward in tiles; backward with the plain formulas of a linear layer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, wide: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return tile_rows(x, weight, bias, wide)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        grad = grads[0]
        return grad @ weight, grad.t() @ x, grad.sum(0) if ctx.has_bias else None, None


class LinearPlan:
    """Which shapes may use the wide tile; filled by measurement on first use."""

    def __init__(self, allow_wide: bool = True) -> None:
        self.allow_wide = allow_wide
        self.wide: dict[tuple[Any, ...], bool] = {}

    def _may_go_wide(self, weight: Tensor, bias: Tensor | None) -> bool:
        key = (tuple(weight.shape), weight.dtype, weight.device, bias is not None, torch.get_num_threads())
        if key not in self.wide:
            generator = torch.Generator().manual_seed(20)
            sample = torch.randn(WIDE_TILE, weight.shape[1], generator=generator).to(weight.device, weight.dtype)
            with torch.no_grad():
                self.wide[key] = torch.equal(linear(sample, weight, bias), tile_rows(sample, weight, bias))
        return self.wide[key]

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x [..., K] -> [..., N]. Differentiable."""
        flat = x.reshape(-1, x.shape[-1])
        wide = self.allow_wide and flat.shape[0] >= WIDE_TILE and self._may_go_wide(weight, bias)
        if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
            out: Tensor = _TiledLinear.apply(flat, weight, bias, wide)  # type: ignore[no-untyped-call]
        else:
            out = tile_rows(flat, weight, bias, wide)
        return out.view(*x.shape[:-1], weight.shape[0])
