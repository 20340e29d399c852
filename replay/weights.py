"""The digest of a model's weights: what proves that a replay scores under the weights that the run recorded."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from timscope.data.digest import Item, digest_tensors


def weight_items(model: nn.Module) -> Iterator[Item]:
    """(name, dtype, shape, little-endian bytes) of every tensor of the state dict, by name, a tied output head once."""
    state = model.state_dict()
    head, embedding = state.get("lm_head.weight"), state.get("model.embed_tokens.weight")
    tied = head is not None and embedding is not None and head.data_ptr() == embedding.data_ptr()
    for name in sorted(state):
        if name == "lm_head.weight" and tied:
            continue
        tensor = state[name].detach().to("cpu").contiguous()
        data = tensor.reshape(-1).view(torch.uint8).numpy().data
        yield name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data


def model_digest(model: nn.Module) -> str:
    """Digest of the model's weights as they stand, in their own dtype; the same on the trainer's side and here."""
    return digest_tensors(weight_items(model))
