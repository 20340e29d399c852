"""Swaps of the logits, of stored weights and of the whole forward; `swaps` has those of single operations."""

from __future__ import annotations

import torch
from torch import Tensor

from timscope.replay.localize import parts
from timscope.replay.localize.computation import Computation, exact_log_softmax, plain_log_softmax
from timscope.replay.localize.low_precision import fp8_per_tensor, int8_per_channel, through_bfloat16
from timscope.replay.localize.patching import Patches, cast_parameters
from timscope.replay.localize.routing import use_attention
from timscope.replay.localize.swaps import Install, activation, gemm_plain, norm, rope_float32


def logits_bfloat16(c: Computation, p: Patches) -> None:
    """Logits rounded to bfloat16, the log-softmax still in float32."""
    p.forward(c.model.lm_head, lambda old: lambda x: through_bfloat16(old(x)))


def log_softmax_bfloat16(c: Computation, p: Patches) -> None:
    """Logits and log-softmax in bfloat16."""

    def narrow(logits: Tensor, ids: Tensor, temperature: float) -> Tensor:
        low = (logits / temperature).to(torch.bfloat16)
        return torch.log_softmax(low, -1).gather(-1, ids[:, None])[:, 0].float()

    p.attribute(c, "log_softmax", narrow)


def log_softmax_other(c: Computation, p: Patches) -> None:
    """torch's logsumexp in place of tree sums, or the other way round; float32 both."""
    other = plain_log_softmax if c.log_softmax is exact_log_softmax else exact_log_softmax
    p.attribute(c, "log_softmax", other)


def weights_bfloat16(c: Computation, p: Patches) -> None:
    """All weights rounded to bfloat16, the computation as before."""
    for module in c.model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                p.parameter(module, name, through_bfloat16(parameter.detach()))


def weights_fp8(c: Computation, p: Patches) -> None:
    """The decoder's linear weights in float8 e4m3, one scale a tensor."""
    parts.round_weights(parts.linears(c.model, head=False), fp8_per_tensor, p)


def weights_int8(c: Computation, p: Patches) -> None:
    """The decoder's linear weights in int8, one scale an output channel."""
    parts.round_weights(parts.linears(c.model, head=False), int8_per_channel, p)


def model_in(dtype: torch.dtype) -> Install:
    """The whole forward in another dtype, kernels as before."""
    return lambda c, p: cast_parameters(c.model, dtype, p)


def fused_bfloat16(c: Computation, p: Patches) -> None:
    """bfloat16 as rollout engines' fused kernels do it: norm, rope, activation in float32 and one rounding each."""
    cast_parameters(c.model, torch.bfloat16, p)
    gemm_plain(c, p)
    norm(parts.norm_in_float32)(c, p)
    rope_float32(c, p)
    activation(torch.float32)(c, p)
    use_attention(c.model, "sdpa", p)
