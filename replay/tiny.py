"""Random tiny models with awkward sizes. Sizes that are multiples of every vector width hide size-dependent kernels."""

from __future__ import annotations

from typing import Any

import torch
import transformers

FAMILIES = ("llama", "qwen2", "qwen3")


def tiny_model(
    family: str,
    dtype: torch.dtype = torch.float32,
    width: int = 424,
    vocabulary: int = 391,
    layers: int = 2,
    tied: bool = False,
    seed: int = 3,
    head_dim: int = 12,
) -> Any:
    """A model of a family in FAMILIES with grouped-query attention, MLP `width` and weights large enough to matter."""
    names = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}
    config = getattr(transformers, names[family] + "Config")(
        hidden_size=72,
        intermediate_size=width,
        num_hidden_layers=layers,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=head_dim,
        vocab_size=vocabulary,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        initializer_range=0.15,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, names[family] + "ForCausalLM")(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("bias"):  # transformers starts biases at zero, which would test nothing
                    parameter.normal_(0.0, 0.15)
    return model.to(dtype).eval()
