"""A model's weights as the fast engine wants them: query, key and value in one matrix, gate and up in another.

Joining matrices along the output changes no bit of the result, because each output element is a sum over K of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from timscope.data.errors import BadInput
from timscope.replay.exact.support import check_model


@dataclass(frozen=True)
class Layer:
    """One block. `qkv` [(Hq + 2 Hkv) D, H], `gate_up` [2 I, H]; biases and per-head norms where the model has them."""

    norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    head_norms: tuple[Tensor, Tensor] | None
    out: Tensor
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True)
class Weights:
    """The whole model on one device, with what its config fixes."""

    embedding: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Tensor
    rotary: tuple[Tensor, Tensor]  # cos and sin [positions, D / 2]
    q_heads: int
    kv_heads: int
    dim: int
    eps: float

    @property
    def device(self) -> torch.device:
        """Where everything lies."""
        return self.embedding.device


def _joined(parts: list[Any]) -> tuple[Tensor, Tensor | None]:
    weight = torch.cat([p.weight.detach() for p in parts])
    bias = None if parts[0].bias is None else torch.cat([p.bias.detach() for p in parts])
    return weight, bias


def _layer(block: Any) -> Layer:
    attention, mlp = block.self_attn, block.mlp
    qkv, qkv_bias = _joined([attention.q_proj, attention.k_proj, attention.v_proj])
    gate_up, gate_bias = _joined([mlp.gate_proj, mlp.up_proj])
    if gate_bias is not None or mlp.down_proj.bias is not None:
        raise BadInput("the fast engine knows no MLP biases: score this model with the reference engine")
    norms = (
        (attention.q_norm.weight.detach(), attention.k_norm.weight.detach()) if hasattr(attention, "q_norm") else None
    )
    out_bias = attention.o_proj.bias
    return Layer(
        block.input_layernorm.weight.detach(), qkv, qkv_bias, norms, attention.o_proj.weight.detach(),
        None if out_bias is None else out_bias.detach(), block.post_attention_layernorm.weight.detach(),
        gate_up, mlp.down_proj.weight.detach(),
    )  # fmt: skip


def rotary_tables(model: Any, positions: int) -> tuple[Tensor, Tensor]:
    """cos and sin [positions, D / 2] of the model's own frequencies, in float32 and rounded to the model's dtype."""
    module = model.model.rotary_emb
    device = model.lm_head.weight.device
    angle = torch.arange(positions, device=device, dtype=torch.float32)[:, None] * module.inv_freq.to(device).float()
    scaling = module.attention_scaling
    return (angle.cos() * scaling).to(model.dtype), (angle.sin() * scaling).to(model.dtype)


def read_weights(model: Any, positions: int = 32_768) -> Weights:
    """Weights of a transformers causal LM of a known architecture. Raises BadInput for one that is not known."""
    check_model(model)
    config = model.config
    if config.hidden_act != "silu":
        raise BadInput(f"the fast engine knows silu, not {config.hidden_act}: score with the reference engine")
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if dim not in (64, 128, 256):
        raise BadInput(f"the fast engine knows head sizes 64, 128 and 256, not {dim}: score with the reference engine")
    return Weights(
        model.model.embed_tokens.weight.detach(),
        tuple(_layer(block) for block in model.model.layers),
        model.model.norm.weight.detach(),
        model.lm_head.weight.detach(),
        rotary_tables(model, positions),
        config.num_attention_heads,
        config.num_key_value_heads,
        dim,
        config.rms_norm_eps,
    )
