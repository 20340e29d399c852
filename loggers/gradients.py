"""Gradient statistics by module, from the gradients as backward left them, before any clipping.

Three fused passes over the gradients and one transfer to the host; nothing is written to and no random number is drawn.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

# "model.layers.12.self_attn.q_proj.weight" -> "layers.12.self_attn"; everything outside the layers goes by its module.
_LAYER = re.compile(r"(?:^|\.)(layers|h|blocks)\.(\d+)\.([^.]+)")


def group_of(name: str) -> str:
    """The parameter group of a parameter: its block inside a layer, or its module's name outside the layers."""
    if found := _LAYER.search(name):
        part = found[3] if "norm" not in found[3] else "norm"
        return f"{found[1]}.{int(found[2]):03d}.{part}"
    parts = [p for p in name.split(".") if p not in ("module", "model", "weight", "bias", "base_model")]
    return parts[0] if parts else name


def gradient_groups(named: Iterable[tuple[str, Any]], scale: float = 1.0) -> dict[str, dict[str, float]]:
    """`{group: {norm, max_abs, zero_share, nonfinite}}` over (name, parameter), with a group `total`.

    `scale`: the loss scale of mixed fp16 training; norms are divided by it. norm: L2, summed in float64 over per-tensor
    float32 norms. zero_share: share of exact zeros. nonfinite: count of inf and NaN, only searched for where the norm
    is not finite, because a finite norm proves that there is none.
    """
    import torch

    pairs = [(group_of(name), p.grad.detach()) for name, p in named if p.grad is not None]
    if not pairs:
        return {}
    grads = [g for _, g in pairs]
    with torch.no_grad():
        norms = torch._foreach_norm(grads, 2, dtype=torch.float32)
        peaks = torch._foreach_norm(grads, math.inf, dtype=torch.float32)
        zeros = [g.numel() - torch.count_nonzero(g) for g in grads]
        device = grads[0].device
        table = torch.stack([torch.stack([x.to(device).double() for x in column]) for column in (norms, peaks, zeros)])
    norm_list, peak_list, zero_list = table.tolist()
    groups: dict[str, list[int]] = {}
    for index, (group, _) in enumerate(pairs):
        groups.setdefault(group, []).append(index)
    groups["total"] = list(range(len(pairs)))
    result = {}
    for group, members in groups.items():
        norm = math.sqrt(sum(norm_list[i] ** 2 for i in members))
        size = sum(grads[i].numel() for i in members)
        bad = 0 if math.isfinite(norm) else sum(int((~torch.isfinite(grads[i])).sum()) for i in members)
        result[group] = {
            "norm": norm / scale,
            "max_abs": max(peak_list[i] for i in members) / scale,
            "zero_share": sum(zero_list[i] for i in members) / size,
            "nonfinite": bad,
        }
    return result
