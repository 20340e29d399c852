"""The fast engine's operations as autograd functions: the forward calls the engine's own kernels, so its bits are
those of scoring; the backward sums in a fixed order, so two passes give equal gradients.

Shapes: T packed rows, H hidden, I intermediate, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd import Function

from timscope.replay.fast import elementwise
from timscope.replay.fast.elementwise_backward import rms_norm_backward, swiglu_backward
from timscope.replay.fast.matmul import Plan


@contextmanager
def exact_products() -> Iterator[None]:
    """No TF32 and no bf16 partial sums, as in scoring; for the backward too, which runs after other contexts ended."""
    products = torch.backends.cuda.matmul
    before = products.allow_tf32, products.allow_bf16_reduced_precision_reduction
    products.allow_tf32 = products.allow_bf16_reduced_precision_reduction = False
    try:
        yield
    finally:
        products.allow_tf32, products.allow_bf16_reduced_precision_reduction = before


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, plan: Plan, count: int, *parameters: Tensor) -> Tensor:
        """`parameters`: `count` weights, then as many biases or none. They are joined for the product and saved apart,
        so that the joined copy lives no longer than the product."""
        weights, biases = parameters[:count], parameters[count:]
        ctx.save_for_backward(x, *weights)
        ctx.sizes = [w.shape[0] for w in weights]
        with exact_products():
            return plan.linear(x, _joined(weights), _joined(biases) if biases else None)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        wanted, count = ctx.needs_input_grad, len(weights)
        d_weights: Sequence[Tensor | None] = [None] * count
        d_biases: Sequence[Tensor | None] = [None] * (len(wanted) - 3 - count)
        with exact_products():
            dx = grad @ _joined(weights) if wanted[0] else None
            if any(wanted[3 : 3 + count]):
                d_weights = (grad.t() @ x).split(ctx.sizes)
            if any(wanted[3 + count :]):
                d_biases = grad.sum(0, dtype=torch.float32).to(grad.dtype).split(ctx.sizes)
        return (dx, None, None, *d_weights, *d_biases)


def linear(plan: Plan, x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor] = ()) -> Tensor:
    """x [T, K] times the weights [N_i, K], joined along their outputs as the engine has them -> [T, sum of N_i]."""
    result: Tensor = _Linear.apply(x, plan, len(weights), *weights, *biases)
    return result


class _Norm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return elementwise.rms_norm(x, weight, eps)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        return *rms_norm_backward(x, weight, ctx.eps, grad.contiguous(), None), None


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """elementwise.rms_norm with gradients."""
    result: Tensor = _Norm.apply(x, weight, eps)
    return result


class _AddNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        # The engine's kernel, told to write the sum beside the residual, which an earlier backward still needs.
        total, out = torch.empty_like(residual), torch.empty_like(x)
        block = triton.next_power_of_2(x.shape[1])
        arguments = (x, residual, weight, total, out, eps, x.shape[1], block, True)
        elementwise._norm_kernel[(x.shape[0],)](*arguments, num_warps=elementwise._warps(block))
        ctx.save_for_backward(total, weight)
        ctx.eps = eps
        ctx.set_materialize_grads(False)
        return out, total

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, d_total: Tensor | None) -> tuple[Tensor | None, ...]:
        total, weight = ctx.saved_tensors
        if grad is None:
            return d_total, d_total, None, None
        if d_total is not None:
            d_total = d_total.contiguous()
        dx, d_weight = rms_norm_backward(total, weight, ctx.eps, grad.contiguous(), d_total)
        return dx, dx, d_weight, None


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """elementwise.add_rms_norm with gradients: (norm(residual + x), residual + x); `residual` stays as it is."""
    out, total = _AddNorm.apply(x, residual, weight, eps)
    return out, total


class _Swiglu(Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        return elementwise.swiglu(gate_up)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        return swiglu_backward(gate_up, grad.contiguous())


def swiglu(gate_up: Tensor) -> Tensor:
    """elementwise.swiglu with gradients."""
    result: Tensor = _Swiglu.apply(gate_up)
    return result
