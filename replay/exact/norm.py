"""RMSNorm and rotary tables with the rounding steps of the transformers classes, but size-independent.

The norm is in float32 with a tree sum, and 1 / sqrt(x) instead of rsqrt, because IEEE fixes the rounding of a square
root and a division and of no reciprocal square root. The rotary angles are one product each; their cos and sin go in
full tiles.
"""

from __future__ import annotations

import torch
from torch import Tensor

from timscope.replay.exact.tiles import tiled, tree_sum


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., H] in any dtype: normalised in float32, rounded to x's dtype, then multiplied by weight [H]."""
    high = x.to(torch.float32)
    variance = tree_sum(high * high) / x.shape[-1]
    scaled = high * (1.0 / torch.sqrt(variance + eps))
    return weight * scaled.to(x.dtype)


def rotary_tables(
    inv_freq: Tensor, position_ids: Tensor, attention_scaling: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """cos and sin [B, L, D] of inv_freq [D/2] at position_ids [B, L], scaled in float32 and rounded to dtype."""
    with torch.no_grad():
        half = position_ids.to(inv_freq.device, torch.float32)[..., None] * inv_freq.to(torch.float32)
        cos, sin = tiled(torch.cos, half) * attention_scaling, tiled(torch.sin, half) * attention_scaling
        return torch.cat([cos, cos], -1).to(dtype), torch.cat([sin, sin], -1).to(dtype)
