"""One-op swaps, one function each: a single choice of a computation, changed for real in its forward.

`swap_table` names them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from timscope.replay.exact import attention as exact_attention
from timscope.replay.exact.linear import LinearPlan
from timscope.replay.localize import parts
from timscope.replay.localize.computation import Computation
from timscope.replay.localize.low_precision import Rounding, through_bfloat16
from timscope.replay.localize.patching import Patches
from timscope.replay.localize.routing import Heads, Step, add_step, use_attention

Install = Callable[[Computation, Patches], None]
Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def nothing(_c: Computation, _p: Patches) -> None:
    """The negative control: a swap to itself."""


def attention(name: str) -> Install:
    """Another attention kernel."""
    return lambda c, p: use_attention(c.model, name, p)


exact_tiles = attention(exact_attention.NAME)


def _product(c: Computation, p: Patches, product: Product, body: bool, head: bool) -> None:
    chosen = parts.linears(c.model, head) if body else iter([c.model.lm_head])
    for module in chosen:
        p.attribute(module, "forward", partial(_apply, module, product))


def _apply(module: Any, product: Product, x: Tensor) -> Tensor:
    return product(x, module.weight, module.bias)


def gemm_plain(c: Computation, p: Patches) -> None:
    """torch's own matrix products, whatever the number of rows."""
    _product(c, p, torch.nn.functional.linear, body=True, head=True)


def gemm_tiles(c: Computation, p: Patches) -> None:
    """The exact engine's 16-row tiles."""
    _product(c, p, LinearPlan().linear, body=True, head=True)


def gemm_split_k(c: Computation, p: Patches) -> None:
    """The sum over K in two halves."""
    _product(c, p, parts.split_k, body=True, head=True)


def gemm_bfloat16(c: Computation, p: Patches) -> None:
    """The decoder's products in bfloat16, operands and results; the head stays."""
    _product(c, p, parts.in_bfloat16, body=True, head=False)


def head_bfloat16(c: Computation, p: Patches) -> None:
    """The head's product in bfloat16: weight, hidden state and logits."""
    _product(c, p, parts.in_bfloat16, body=False, head=True)


def head_float32(c: Computation, p: Patches) -> None:
    """The head's product in float32, logits left in float32."""
    _product(c, p, parts.in_float32, body=False, head=True)


def norm(forward: Callable[[Any, Tensor], Tensor]) -> Install:
    """Another RMSNorm everywhere."""

    def install(c: Computation, p: Patches) -> None:
        for module in parts.norms(c.model):
            p.attribute(module, "forward", partial(forward, module))

    return install


def rope_bfloat16(c: Computation, p: Patches) -> None:
    """cos and sin rounded to bfloat16, and the rotated query and key too."""
    _tables(c, p, through_bfloat16)
    add_step(c.model, Step(before=lambda _m, h: (through_bfloat16(h[0]), through_bfloat16(h[1]), h[2])), p)


def rope_float32(c: Computation, p: Patches) -> None:
    """cos and sin in float32, so the rotation is too; query and key are rounded once, after it."""

    def narrow(_module: Any, h: Heads) -> Heads:
        return h[0].to(h[2].dtype), h[1].to(h[2].dtype), h[2]

    def wide(old: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, position_ids: old(x.float(), position_ids)

    p.forward(c.model.model.rotary_emb, wide)
    add_step(c.model, Step(before=narrow), p)


def _tables(c: Computation, p: Patches, change: Rounding) -> None:
    def make(old: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
        return lambda x, position_ids: tuple(change(t) for t in old(x, position_ids))  # type: ignore[return-value]

    p.forward(c.model.model.rotary_emb, make)


def activation(dtype: torch.dtype) -> Install:
    """The MLP's activation and gate product in another dtype."""

    def install(c: Computation, p: Patches) -> None:
        for layer in c.model.model.layers:
            p.attribute(layer.mlp, "forward", partial(parts.gated, layer.mlp, dtype=dtype))

    return install


def residual_bfloat16(c: Computation, p: Patches) -> None:
    """The residual stream in bfloat16."""
    p.forward(c.model.model.embed_tokens, lambda old: lambda ids: through_bfloat16(old(ids)))
    for layer in c.model.model.layers:
        p.attribute(layer, "forward", partial(parts.layer_with_narrow_residual, layer))


def attention_bfloat16(c: Computation, p: Patches) -> None:
    """Query, key, value and the attention's output rounded to bfloat16."""

    def narrow(_module: Any, h: Heads) -> Heads:
        return through_bfloat16(h[0]), through_bfloat16(h[1]), through_bfloat16(h[2])

    add_step(c.model, Step(before=narrow, after=lambda _m, out: through_bfloat16(out)), p)


def key_value(rounding: Rounding) -> Install:
    """Key (after rope) and value rounded, as a cache in that format would hold them."""
    step = Step(before=lambda _m, h: (h[0], rounding(h[1]), rounding(h[2])))
    return lambda c, p: add_step(c.model, step, p)
