"""Rounding to narrow formats and back, as engines that store weights or the KV cache in them do."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

E4M3_MAX = 448.0
INT8_MAX = 127.0

Rounding = Callable[[Tensor], Tensor]


def through_bfloat16(x: Tensor) -> Tensor:
    """To bfloat16 and back to x's dtype."""
    return x.to(torch.bfloat16).to(x.dtype)


def fp8_per_tensor(x: Tensor) -> Tensor:
    """float8 e4m3 with one scale for the whole tensor, its largest value at 448."""
    high = x.float()
    scale = high.abs().amax().clamp(min=1e-12) / E4M3_MAX
    return ((high / scale).to(torch.float8_e4m3fn).float() * scale).to(x.dtype)


def fp8_unscaled(x: Tensor) -> Tensor:
    """float8 e4m3 with a scale of 1, values beyond 448 cut off: a KV cache without calibrated scales."""
    return x.float().clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).to(x.dtype)


def int8_per_channel(x: Tensor) -> Tensor:
    """Symmetric int8 of a weight [out, in] with one scale an output channel."""
    high = x.float()
    scale = high.abs().amax(-1, keepdim=True).clamp(min=1e-12) / INT8_MAX
    return ((high / scale).round().clamp(-INT8_MAX, INT8_MAX) * scale).to(x.dtype)
