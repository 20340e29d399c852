"""The digest of a model's weights: it proves that a replay loaded the weights that this run recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from timscope.data.digest import Item, digest_tensors


def weight_items(model: Any) -> Iterator[Item]:
    """(name, dtype, shape, bytes) of every tensor of `model.state_dict()`, sorted by name, one at a time on the host.

    A tied output head (`lm_head.weight` in the memory of the input embedding) is one tensor and is left out, so a model
    has one digest whether its file names the head or not.
    """
    import torch

    state = model.state_dict()
    inputs = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None
    embedding = getattr(inputs, "weight", None)
    for name in sorted(state):
        tensor = state[name].detach()
        if name == "lm_head.weight" and embedding is not None and tensor.data_ptr() == embedding.data_ptr():
            continue
        host = tensor.to("cpu").contiguous()
        # Bytes, because numpy knows no bfloat16.
        data = memoryview(host.reshape(-1).view(torch.uint8).numpy())
        yield name, str(host.dtype).removeprefix("torch."), tuple(host.shape), data


def weights_digest(model: Any) -> str:
    """SHA-256 over the model's tensors as `timscope.data.digest` defines it."""
    return digest_tensors(weight_items(model))
