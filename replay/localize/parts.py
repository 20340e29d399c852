"""The parts of a decoder that swaps change, and the operations they are changed to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from timscope.replay.exact.support import NORMS
from timscope.replay.localize.low_precision import Rounding, through_bfloat16
from timscope.replay.localize.patching import Patches


def linears(model: Any, head: bool) -> Iterator[nn.Linear]:
    """The linear layers of the decoder, and the head if `head`."""
    yield from (module for module in model.model.modules() if isinstance(module, nn.Linear))
    if head:
        yield model.lm_head


def norms(model: Any) -> Iterator[Any]:
    """Every RMSNorm."""
    yield from (module for module in model.modules() if type(module).__name__ in NORMS)


def round_weights(modules: Iterator[Any], rounding: Rounding, patches: Patches) -> None:
    """Round the weights (not the biases) of these modules."""
    for module in modules:
        patches.parameter(module, "weight", rounding(module.weight.detach()))


def split_k(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A product whose sum over K is two halves, each rounded to float32, then added: what split-K kernels do."""
    half = weight.shape[1] // 2
    a, w = x.float(), weight.float()
    out = linear(a[..., :half], w[:, :half]) + linear(a[..., half:], w[:, half:])
    return (out if bias is None else out + bias.float()).to(x.dtype)


def in_bfloat16(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """torch's bfloat16 product of the operands rounded to bfloat16, widened again."""
    b = None if bias is None else bias.to(torch.bfloat16)
    return linear(x.to(torch.bfloat16), weight.to(torch.bfloat16), b).to(x.dtype)


def in_float32(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """torch's float32 product of the operands, left in float32."""
    return linear(x.float(), weight.float(), None if bias is None else bias.float())


def norm_in_bfloat16(module: Any, x: Tensor) -> Tensor:
    """RMSNorm with every step in bfloat16."""
    low = x.to(torch.bfloat16)
    scaled = low * torch.rsqrt(low.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)
    out: Tensor = (module.weight.to(torch.bfloat16) * scaled).to(x.dtype)
    return out


def norm_in_float32(module: Any, x: Tensor) -> Tensor:
    """RMSNorm with every step in float32, the weight's product too, and one rounding at the end: fused kernels."""
    high = x.float()
    scaled = high * torch.rsqrt(high.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)
    out: Tensor = (module.weight.float() * scaled).to(x.dtype)
    return out


def gated(module: Any, x: Tensor, dtype: torch.dtype) -> Tensor:
    """The MLP with its activation and product in `dtype`."""
    gate, up = module.gate_proj(x), module.up_proj(x)
    out: Tensor = module.down_proj((module.act_fn(gate.to(dtype)) * up.to(dtype)).to(x.dtype))
    return out


def layer_with_narrow_residual(layer: Any, hidden_states: Tensor, **options: Any) -> Tensor:
    """A decoder layer whose residual stream is rounded to bfloat16 after each addition."""
    out, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **options)
    middle = through_bfloat16(hidden_states + out)
    return through_bfloat16(middle + layer.mlp(layer.post_attention_layernorm(middle)))
