"""A model's weights as bytes: what proves that a replay scores under the weights that a run recorded, or sets them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from timscope.data import BadInput
from timscope.data.digest import Item, digest_tensors, stored_names
from timscope.data.weights import RawTensor


def weight_items(model: nn.Module) -> Iterator[Item]:
    """(name, dtype, shape, little-endian bytes) of every tensor of the state dict, by name, a tied output head once."""
    state = model.state_dict()
    for name in stored_names({name: (str(t.device), t.data_ptr()) for name, t in state.items()}):
        tensor = state[name].detach().to("cpu").contiguous()
        data = tensor.reshape(-1).view(torch.uint8).numpy().data
        yield name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data


def model_digest(model: nn.Module) -> str:
    """Digest of the model's weights as they stand, in their own dtype; the same on the trainer's side and here."""
    return digest_tensors(weight_items(model))


def as_tensor(raw: RawTensor) -> Tensor:
    """The tensor over the same memory: for reading only."""
    dtype = getattr(torch, raw.dtype)
    if not raw.nbytes:
        return torch.empty(raw.shape, dtype=dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(raw.data, dtype=dtype).reshape(raw.shape)


def set_weights(model: nn.Module, tensors: Mapping[str, RawTensor]) -> None:
    """Put recorded weights into a model in place, rounded to its dtype, one tensor at a time.

    BadInput where names or shapes are not the model's: then some tensors may have been set already.
    """
    state = model.state_dict()
    check_names(model, tensors)
    with torch.no_grad():
        for name in sorted(tensors):
            tensor = as_tensor(tensors[name])
            if state[name].shape != tensor.shape:
                raise BadInput(
                    f"the recorded tensor {name} has shape {list(tensor.shape)}, the model's has "
                    f"{list(state[name].shape)}: the run's manifest describes another model"
                )
            state[name].copy_(tensor)


def check_names(model: nn.Module, tensors: Mapping[str, RawTensor]) -> None:
    """BadInput unless the recorded tensors are exactly the model's, a tied output head once."""
    state = model.state_dict()
    wanted = set(stored_names({name: (str(t.device), t.data_ptr()) for name, t in state.items()}))
    if wrong := sorted(wanted ^ set(tensors)):
        where = "is not among the recorded weights" if wrong[0] in wanted else "is not a tensor of the model"
        raise BadInput(f"{wrong[0]} {where}: the run's manifest describes another model")
