"""The swaps by name: what each is, and from which dtype it is a change that an engine could have made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from timscope.data import BadInput
from timscope.replay.localize import parts, swaps
from timscope.replay.localize import swaps_whole as whole
from timscope.replay.localize.low_precision import fp8_unscaled, through_bfloat16
from timscope.replay.localize.swaps import Install

CONTROL, CONTROL_GROUP = "self", "control"
WHOLE = "whole forward"


@dataclass(frozen=True)
class Swap:
    """`only`: the dtype of a start that it is meant for, None for any; from another it would be no change.

    `instead`: the name of a whole other witness, which takes the start's place; else `install` changes the start.
    """

    name: str
    group: str
    what: str
    install: Install = swaps.nothing
    only: str | None = None
    instead: str | None = None


_LOW, _HIGH, _F32, _BF16 = torch.bfloat16, torch.float32, "float32", "bfloat16"

SWAPS: dict[str, Swap] = {
    swap.name: swap
    for swap in (
        Swap(CONTROL, CONTROL_GROUP, "nothing at all: must remove exactly 0", swaps.nothing),
        Swap("attention-eager", "attention", "transformers' eager attention", swaps.attention("eager")),
        Swap("attention-sdpa", "attention", "torch's scaled_dot_product_attention", swaps.attention("sdpa")),
        Swap("attention-tiles", "attention", "the exact engine's tiles", swaps.exact_tiles),
        Swap("attention-bf16", "attention", "q, k, v and output in bf16", swaps.attention_bfloat16, _F32),
        Swap("gemm-plain", "gemm", "torch's products, any number of rows", swaps.gemm_plain),
        Swap("gemm-tiles", "gemm", "the exact engine's 16-row tiles", swaps.gemm_tiles),
        Swap("gemm-split-k", "gemm", "the sum over K in two halves", swaps.gemm_split_k),
        Swap("gemm-bf16", "gemm", "decoder products in bf16, head as before", swaps.gemm_bfloat16, _F32),
        Swap("norm-bf16", "norm", "RMSNorm with bf16 internals", swaps.norm(parts.norm_in_bfloat16)),
        Swap("norm-fp32", "norm", "RMSNorm in fp32, one rounding at its end", swaps.norm(parts.norm_in_float32)),
        Swap("rope-bf16", "rope", "cos, sin, rotated q and k in bf16", swaps.rope_bfloat16, _F32),
        Swap("rope-fp32", "rope", "rotation in fp32, rounded once", swaps.rope_float32),
        Swap("activation-bf16", "activation", "activation and gate in bf16", swaps.activation(_LOW), _F32),
        Swap("activation-fp32", "activation", "activation and gate in fp32", swaps.activation(_HIGH)),
        Swap("residual-bf16", "residual", "residual stream in bf16", swaps.residual_bfloat16, _F32),
        Swap("head-bf16", "head", "LM head in bf16: weight, input, logits", swaps.head_bfloat16, _F32),
        Swap("head-fp32", "head", "LM head in fp32, logits left in fp32", swaps.head_float32, _BF16),
        Swap("logits-bf16", "logits", "logits rounded to bf16, fp32 log-softmax", whole.logits_bfloat16, _F32),
        Swap("log-softmax-bf16", "logits", "logits and log-softmax in bf16", whole.log_softmax_bfloat16),
        Swap("log-softmax-order", "logits", "the log-softmax's other order of summation", whole.log_softmax_other),
        Swap("weights-bf16", "weights", "all weights rounded to bf16", whole.weights_bfloat16, _F32),
        Swap("weights-fp8", "weights", "linear weights in fp8 e4m3, scale a tensor", whole.weights_fp8),
        Swap("weights-int8", "weights", "linear weights in int8, scale a channel", whole.weights_int8),
        Swap("kv-bf16", "kv cache", "keys and values in bf16", swaps.key_value(through_bfloat16), _F32),
        Swap("kv-fp8", "kv cache", "keys and values in fp8 e4m3, scale 1", swaps.key_value(fp8_unscaled)),
        Swap("model-bf16", WHOLE, "everything in bf16, kernels as before", whole.model_in(_LOW), _F32),
        Swap("model-fp32", WHOLE, "everything in fp32, from these weights", whole.model_in(_HIGH), _BF16),
        Swap("fused-bf16", WHOLE, "everything in bf16, fused kernels' fp32 inside", whole.fused_bfloat16),
        Swap("hf-bf16-sdpa", WHOLE, "plain transformers in bf16, sdpa", instead="hf-bfloat16-sdpa"),
        Swap("hf-bf16-eager", WHOLE, "plain transformers in bf16, eager", instead="hf-bfloat16-eager"),
    )
}


def choose_swaps(names: Sequence[str] | None, dtype: str) -> list[Swap]:
    """The swaps of these names, or all that are meant for a start in `dtype`; the control is always the first."""
    for name in names or ():
        if name not in SWAPS:
            raise BadInput(f"there is no swap {name!r}: there are {', '.join(SWAPS)}")
    if names is None:
        return [swap for swap in SWAPS.values() if swap.only in (None, dtype)]
    return [SWAPS[name] for name in dict.fromkeys([CONTROL, *names])]
