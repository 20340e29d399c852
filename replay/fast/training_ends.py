"""Both ends of the training forward: token embedding and the head's log-probabilities, with gradients.

The head's backward makes logits again, a slice of the vocabulary and of the rows at a time, so neither logits nor their
gradient are ever whole; a slice of the head's gradient is finished before the next begins.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import embedding as lookup

from timscope.replay.fast.forward import LOGIT_BYTES
from timscope.replay.fast.head import _tempered, token_logprobs
from timscope.replay.fast.matmul import Plan
from timscope.replay.fast.training_ops import exact_products

SLICE = 16_384  # entries of the vocabulary at a time: a fixed number, since the plan probes each width once


@triton.jit
def _embedding_kernel(ids, order, ends, d_out, grad, width, BLOCK: tl.constexpr):
    """The first of each run of equal ids, sorted, adds up the run's rows in order."""
    nth = tl.program_id(0)
    token = tl.load(ids + nth)
    before = tl.load(ids + tl.maximum(nth - 1, 0))
    if (nth == 0) | (before != token):
        columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = columns < width
        total = tl.zeros((BLOCK,), tl.float32)
        for i in range(nth, tl.load(ends + nth)):
            row = tl.load(order + i).to(tl.int64)
            total += tl.load(d_out + row * width + columns, inside, other=0.0).to(tl.float32)
        tl.store(grad + token.to(tl.int64) * width + columns, total.to(grad.dtype.element_ty), inside)


class _Embedding(Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.shape, ctx.dtype = weight.shape, weight.dtype
        return lookup(ids, weight)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[None, Tensor]:
        (ids,) = ctx.saved_tensors
        grad = torch.zeros(ctx.shape, dtype=ctx.dtype, device=d_out.device)
        ordered, order = ids.sort(stable=True)
        ends = torch.searchsorted(ordered, ordered, right=True, out_int32=True)
        width = ctx.shape[1]
        block = min(triton.next_power_of_2(width), 1024)
        grid = (ids.numel(), triton.cdiv(width, block))
        _embedding_kernel[grid](ordered, order, ends, d_out.contiguous(), grad, width, block, num_warps=4)
        return None, grad


def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """Rows [T, H] of weight [V, H]; the gradient is summed in the order of the rows."""
    result: Tensor = _Embedding.apply(ids, weight)
    return result


@triton.jit
def _logit_kernel(
    logits, tokens, lse, entropy, d_logprob, d_entropy, temperature, first, width, stride, BLOCK: tl.constexpr
):
    """Logits of one slice of the vocabulary into the gradient of the loss by them, in place."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    place = logits + row * stride + columns
    x = tl.load(place, inside, other=0.0)
    log_p = _tempered(x, temperature) - tl.load(lse + row)
    p = tl.exp(log_p)
    own = tl.where(first + columns == tl.load(tokens + row), 1.0, 0.0)
    grad = tl.load(d_logprob + row) * (own - p) - tl.load(d_entropy + row) * p * (log_p + tl.load(entropy + row))
    tl.store(place, (grad / temperature).to(x.dtype), inside)


class _Scores(Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, index: Tensor, targets: Tensor, temperature: float, plan: Plan
    ) -> tuple[Tensor, Tensor]:
        chosen = hidden[index]
        rows = max(256, LOGIT_BYTES // (weight.shape[0] * hidden.element_size()) // 256 * 256)
        parts = []
        with exact_products():
            for h, t in zip(chosen.split(rows), targets.split(rows), strict=True):
                logits = plan.linear(h, weight)
                logprob, entropy = token_logprobs(logits, t, temperature)
                own = logits.gather(1, t[:, None])[:, 0].float() / temperature
                parts.append((logprob, entropy, own - logprob))
        logprob, entropy, lse = (torch.cat(p) for p in zip(*parts, strict=True))
        ctx.save_for_backward(hidden, weight, index, targets, lse, entropy)
        ctx.temperature, ctx.plan = temperature, plan
        return logprob, entropy

    @staticmethod
    def backward(ctx: Any, d_logprob: Tensor, d_entropy: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, index, targets, lse, entropy = ctx.saved_tensors
        chosen = hidden[index]
        d_chosen = torch.zeros(chosen.shape, dtype=torch.float32, device=hidden.device)
        d_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        rows = LOGIT_BYTES // (SLICE * hidden.element_size())
        for first in range(0, weight.shape[0], SLICE):
            part = weight[first : first + SLICE]
            total: Tensor | None = None
            for start in range(0, chosen.shape[0], rows):
                cut = slice(start, start + rows)
                columns = (targets, lse, entropy, d_logprob.contiguous(), d_entropy.contiguous())
                with exact_products():
                    grad = ctx.plan.linear(chosen[cut], part)
                    width = part.shape[0]
                    _logit_kernel[(grad.shape[0], triton.cdiv(width, 1024))](
                        grad, *(x[cut] for x in columns), ctx.temperature, first, width, grad.stride(0), 1024
                    )
                    d_chosen[cut] += grad @ part
                    if d_weight is not None:
                        piece = grad.t() @ chosen[cut]
                        total = piece if total is None else total.float() + piece
            if d_weight is not None and total is not None:
                d_weight[first : first + SLICE] = total
        d_hidden = torch.zeros_like(hidden)
        d_hidden[index] = d_chosen.to(hidden.dtype)  # rows are chosen once each, so nothing is added here
        return d_hidden, d_weight, None, None, None, None


def scores(
    hidden: Tensor, weight: Tensor, index: Tensor, targets: Tensor, temperature: float, plan: Plan
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies (float32 [N]) of targets [N] from the rows `index` [N] of hidden [T, H].

    FastModel.logprobs with gradients. No row may be named twice.
    """
    logprob, entropy = _Scores.apply(hidden, weight, index, targets, temperature, plan)
    return logprob, entropy
