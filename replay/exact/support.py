"""Which models the exact engine knows, checked before anything is computed: an unknown one never gives a number."""

from __future__ import annotations

from typing import Any

from torch import nn

from timscope.data.errors import BadInput

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
NORMS = ("LlamaRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm")
ROTARIES = ("LlamaRotaryEmbedding", "Qwen2RotaryEmbedding", "Qwen3RotaryEmbedding")
ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh", "relu")
# Scalings whose frequencies do not depend on the length of the batch.
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def check_config(config: Any, architecture: str, what: str = "the model") -> None:
    """Raise BadInput when a transformers config names anything the engine would not compute exactly."""
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise BadInput(f"{what} is a {architecture}; the exact engine knows {known}: replay one of those")
    if getattr(config, "quantization_config", None) is not None:
        raise BadInput(
            f"{what} is quantised: dequantise it and save it in float32 or bfloat16, then give that directory"
        )
    layers = getattr(config, "layer_types", None) or []
    if getattr(config, "use_sliding_window", False) or any(kind != "full_attention" for kind in layers):
        raise BadInput(f"{what} uses sliding-window attention, which the exact engine does not have: turn it off")
    rope = getattr(config, "rope_parameters", None) or {}
    kind = rope.get("rope_type", "default")
    if kind not in ROPE_TYPES:
        raise BadInput(
            f"{what} uses {kind!r} rotary scaling, which depends on the batch's length: take a static scaling"
        )
    if config.hidden_act not in ACTIVATIONS:
        raise BadInput(f"{what} uses the activation {config.hidden_act!r}; the exact engine knows {ACTIVATIONS}")


def check_model(model: nn.Module) -> None:
    """Raise BadInput unless every module with parameters is one that the engine replaces or that is exact as it is."""
    check_config(model.config, type(model).__name__)
    for name, module in model.named_modules():
        owns = any(True for _ in module.parameters(recurse=False))
        if owns and not (type(module) in (nn.Linear, nn.Embedding) or type(module).__name__ in NORMS):
            raise BadInput(
                f"module {name} is a {type(module).__name__}, which the exact engine does not know: "
                "merge adapters and undo wrappers before the replay"
            )
