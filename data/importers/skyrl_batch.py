"""SkyRL's TensorBatch as it is pickled: a tensor is raw bytes with shape and type, or a torch file of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from timscope.data.importers.files import OpenFile
from timscope.data.importers.numpy_pickles import Dtype
from timscope.data.importers.pickle_names import Named, mapping
from timscope.data.importers.torch_file import load_torch
from timscope.data.importers.torch_names import Device
from timscope.data.importers.unpickle import load_pickle

_HOMES = ("skyrl.backends.skyrl_train.training_batch", "skyrl_train.training_batch")
_CLASSES = ("TensorBatch", "TrainingInputBatch", "TrainingOutputBatch")


def _rebuild(_kind: Any, state: Any) -> dict[str, Any]:
    """The batch's state: columns, batch size, device and metadata."""
    return mapping(state)


_NAMES = {
    **{(home, name): Named(name) for home in _HOMES for name in _CLASSES},
    **{(home, "_rebuild_tensor_batch"): Named("_rebuild_tensor_batch", _rebuild) for home in _HOMES},
    ("torch", "device"): Named("torch.device", Device),
}


def read_batch(file: OpenFile) -> dict[str, Any]:
    """{"columns": tensors by name, None where SkyRL had none; "metadata": ...}. Lists of tensors (images) are left out.

    Raises BadInput and `Damaged` as `load_pickle`; TypeError where a tensor is in no known form.
    """
    state = load_pickle(file.view, file.path.name, _NAMES, file.unknown)
    columns = {name: _tensor(value, f"{file.path.name} ({name})") for name, value in state["batch_dict"].items()}
    return {"columns": columns, "metadata": mapping(state.get("metadata") or {})}


def _tensor(value: Any, place: str) -> Any:
    if value is None or value.get("format") == "tensor_list":
        return None
    if value.get("format") == "torch":  # types that numpy lacks
        return load_torch(memoryview(value["data"]), place)
    flat = np.frombuffer(value["data"], _dtype(value["dtype"]))
    return flat.reshape(tuple(int(n) for n in value["shape"]))


def _dtype(name: Any) -> np.dtype[Any]:
    """A numpy type by its long name ("int64"), from those that a batch can have."""
    known = {
        "bool": "?",
        **{f"{kind}{8 * n}": f"{kind[0]}{n}" for kind in ("int", "uint", "float") for n in (1, 2, 4, 8)},
    }
    if name not in known:
        raise TypeError(f"tensors of type {name!r} are not read here")
    return Dtype(known[name]).dtype()
