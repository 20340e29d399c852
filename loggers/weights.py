"""A model's weights as the digests and snapshots see them: names, raw bytes, and what cannot be taken whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from timscope.data.digest import Item, digest_tensors, stored_names

_WRAPPERS = {"DistributedDataParallel": "module", "DataParallel": "module", "OptimizedModule": "_orig_mod"}


def weight_tensors(model: Any) -> dict[str, Any]:
    """Every tensor of `model.state_dict()`, by name, sorted; a tied output head is left out.

    The head is `lm_head.weight` in the memory of the input embedding: one tensor, so a model has one digest whether its
    file names the head or not. A wrapper of DDP or torch.compile gives the names of the model inside.
    """
    state = unwrapped(model).state_dict()
    names = stored_names({name: (tensor.device, tensor.data_ptr()) for name, tensor in state.items()})
    return {name: state[name] for name in names}


def unwrapped(model: Any) -> Any:
    """The model inside the wrappers that only add a prefix to its names."""
    while type(model).__name__ in _WRAPPERS:
        model = getattr(model, _WRAPPERS[type(model).__name__])
    return model


def flat_bytes(tensor: Any) -> Any:
    """The tensor's values as one flat uint8 tensor, on its device; a view where the tensor is contiguous."""
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8)


def dtype_of(tensor: Any) -> str:
    """ "bfloat16" for torch.bfloat16."""
    return str(tensor.dtype).removeprefix("torch.")


def arrival(device: Any) -> Any:
    """An event behind all that a GPU's current stream has to do; its `synchronize` sleeps and leaves the GIL."""
    import torch

    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def weight_items(model: Any) -> Iterator[Item]:
    """(name, dtype, shape, bytes) of every tensor of `weight_tensors`, one at a time on the host."""
    for name, tensor in weight_tensors(model).items():
        # Bytes, because numpy knows no bfloat16.
        yield name, dtype_of(tensor), tuple(tensor.shape), memoryview(flat_bytes(tensor).to("cpu").numpy())


def weights_digest(model: Any) -> str:
    """SHA-256 over the model's tensors as `timscope.data.digest` defines it."""
    return digest_tensors(weight_items(model))


def why_not_whole(model: Any) -> str | None:
    """Why this process does not hold the weights as they are trained and served, or None where it does.

    Shards of one rank and adapters beside a base model would give digests that nobody else can make.
    """
    if hasattr(model, "peft_config"):
        return "the model has adapters: neither digests nor snapshots of unmerged weights would fit what was served"
    for module in model.modules():
        if type(module).__name__ in ("FullyShardedDataParallel", "FSDPModule"):
            return _SHARDS.format("FSDP")
    for parameter in model.parameters():
        if any(kind.__name__ == "DTensor" for kind in type(parameter).__mro__):
            return _SHARDS.format("FSDP2 or tensor parallelism")
        if hasattr(parameter, "ds_id"):
            return _SHARDS.format("DeepSpeed ZeRO-3")
    return None


_SHARDS = "under {} this process holds shards of the weights: point to the framework's checkpoints instead"
