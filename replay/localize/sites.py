"""The places where two computations are compared: every module boundary of a decoder, in the order of execution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["output", "input", "tables", "query", "key", "value", "logprob"]

LOG_SOFTMAX = "log_softmax"


@dataclass(frozen=True)
class Site:
    """One boundary.

    `name` is what a report calls it, `op` the same without the layer's number, `module` the path of the module whose
    output (or input) it is. `layer` is None outside the layers.
    """

    name: str
    op: str
    layer: int | None
    module: str
    kind: Kind


def _layer(index: int, has_qk_norm: bool) -> list[Site]:
    def site(op: str, module: str, kind: Kind = "output") -> Site:
        return Site(f"layers.{index}.{op}", op, index, f"model.layers.{index}{module}", kind)

    found = [site("input_layernorm", ".input_layernorm"), site("q_proj", ".self_attn.q_proj")]
    if has_qk_norm:
        found.append(site("q_norm", ".self_attn.q_norm"))
    found.append(site("k_proj", ".self_attn.k_proj"))
    if has_qk_norm:
        found.append(site("k_norm", ".self_attn.k_norm"))
    return [
        *found,
        site("v_proj", ".self_attn.v_proj"),
        site("q_rope", ".self_attn", "query"),
        site("k_rope", ".self_attn", "key"),
        site("v_cache", ".self_attn", "value"),
        site("attention", ".self_attn.o_proj", "input"),
        site("o_proj", ".self_attn.o_proj"),
        site("residual_attention", ".post_attention_layernorm", "input"),
        site("post_attention_layernorm", ".post_attention_layernorm"),
        site("gate_proj", ".mlp.gate_proj"),
        site("act_fn", ".mlp.act_fn"),
        site("up_proj", ".mlp.up_proj"),
        site("gate_times_up", ".mlp.down_proj", "input"),
        site("down_proj", ".mlp.down_proj"),
        site("residual_mlp", ""),
    ]


def sites(model: Any) -> list[Site]:
    """All sites of a Llama, Qwen2 or Qwen3 model (`model` is the one with the head)."""
    layers = model.model.layers
    has_qk_norm = hasattr(layers[0].self_attn, "q_norm")
    return [
        Site("embed_tokens", "embed_tokens", None, "model.embed_tokens", "output"),
        Site("rotary_emb", "rotary_emb", None, "model.rotary_emb", "tables"),
        *(site for index in range(len(layers)) for site in _layer(index, has_qk_norm)),
        Site("norm", "norm", None, "model.norm", "output"),
        Site("logits", "logits", None, "lm_head", "output"),
        Site(LOG_SOFTMAX, LOG_SOFTMAX, None, "log_softmax", "logprob"),
    ]
