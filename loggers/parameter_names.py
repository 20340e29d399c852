"""What a parameter is called without its wrappers, and the group it is counted in."""

from __future__ import annotations

import re

# "model.layers.12.self_attn.q_proj.weight" -> "layers.12.self_attn"; everything outside the layers goes by its module.
_LAYER = re.compile(r"(?:^|\.)(layers|h|blocks)\.(\d+)\.([^.]+)")
_WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def plain_name(name: str) -> str:
    """A parameter's name without the prefixes that wrappers (DDP, FSDP, torch.compile, checkpointing) add."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def group_of(name: str) -> str:
    """The parameter group of a parameter: its block inside a layer, or its module's name outside the layers."""
    if found := _LAYER.search(name):
        part = found[3] if "norm" not in found[3] else "norm"
        return f"{found[1]}.{int(found[2]):03d}.{part}"
    parts = [p for p in name.split(".") if p not in (*_WRAPPERS, "model", "weight", "bias", "base_model")]
    return parts[0] if parts else name
