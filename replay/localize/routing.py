"""A way into the attention of one model: what goes in after rotary embedding and what comes out, to see or change.

transformers finds its attention function by a name in the model's config. For each implementation this registers a name
of its own that calls that implementation between the steps that an attention module carries. A module without steps
computes what the implementation computes, bit for bit; no other model is touched.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from timscope.replay.exact import attention as exact
from timscope.replay.localize.patching import Patches

PREFIX = "timscope_routed_"
STEPS = "timscope_steps"

Heads = tuple[Tensor, Tensor, Tensor]  # query [B, Hq, L, D], key and value [B, Hkv, L, D]


@dataclass(frozen=True)
class Step:
    """What happens before the attention (on query, key, value) and after it (on its output [B, L, Hq, D])."""

    before: Callable[[nn.Module, Heads], Heads] | None = None
    after: Callable[[nn.Module, Tensor], Tensor] | None = None


def _inner(name: str, module: nn.Module) -> Callable[..., Any]:
    if name == "eager":  # transformers keeps it beside the model's classes, not in its table
        eager: Callable[..., Any] = sys.modules[type(module).__module__].eager_attention_forward
        return eager
    found: Callable[..., Any] = ALL_ATTENTION_FUNCTIONS[name]
    return found


def _routed(name: str) -> Callable[..., Any]:
    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
    ) -> tuple[Tensor, Any]:
        steps: tuple[Step, ...] = module.__dict__.get(STEPS, ())
        heads = (query, key, value)
        for step in steps:
            heads = step.before(module, heads) if step.before else heads
        out, weights = _inner(name, module)(module, *heads, attention_mask, **options)
        for step in steps:
            out = step.after(module, out) if step.after else out
        return out, weights

    return attention


def use_attention(model: Any, name: str, patches: Patches) -> None:
    """Let the model's attention be implementation `name`: eager, sdpa, or the exact engine's tiles."""
    if name == exact.NAME:
        exact.register()
    if PREFIX + name not in ALL_ATTENTION_FUNCTIONS:
        AttentionInterface.register(PREFIX + name, _routed(name))
        AttentionMaskInterface.register(PREFIX + name, ALL_MASK_ATTENTION_FUNCTIONS[name])
    patches.setting(model.config, "_attn_implementation", PREFIX + name)


def add_step(model: Any, step: Step, patches: Patches) -> None:
    """Add a step to every attention module of the model, behind those that it has."""
    for layer in model.model.layers:
        module = layer.self_attn
        patches.attribute(module, STEPS, (*module.__dict__.get(STEPS, ()), step))
