"""The names that torch's files use for tensors, and what each makes. See `tensors.py` for the tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from timscope.data.importers.pickle_names import Buildable, Named
from timscope.data.importers.placeholders import Inert
from timscope.data.importers.tensors import DTYPES, STORAGES, Nested, Storage, Tensor, jagged


def rebuild(storage: Any, offset: Any, shape: Any, stride: Any, *_rest: Any) -> Tensor | Inert:
    """torch._utils._rebuild_tensor_v2"""
    return _tensor(storage, None, offset, shape, stride)


def rebuild_typed(
    storage: Any, offset: Any, shape: Any, stride: Any, _grad: Any, _hooks: Any, dtype: Any, *_rest: Any
) -> Tensor | Inert:
    """torch._utils._rebuild_tensor_v3: the type is apart from the storage."""
    return _tensor(storage, dtype, offset, shape, stride)


def _tensor(storage: Any, dtype: Any, offset: Any, shape: Any, stride: Any) -> Tensor | Inert:
    if isinstance(storage, Inert):
        return Inert("torch.Tensor")
    if not isinstance(storage, Storage):
        raise TypeError("a tensor without a storage")
    name = storage.dtype if dtype is None else dtype.name.removeprefix("torch.")
    if name not in DTYPES:
        raise TypeError(f"tensors of type {name} are not read here")
    shape, stride = tuple(int(n) for n in shape), tuple(int(n) for n in stride)
    if len(shape) != len(stride):
        raise ValueError("shape and stride differ in length")
    return Tensor(storage, name, int(offset), shape, stride)


def rebuild_parameter(data: Any, *_rest: Any) -> Any:
    """torch._utils._rebuild_parameter: the tensor in it."""
    return data


def rebuild_subclass(function: Any, _kind: Any, args: Any, _state: Any) -> Any:
    """torch._tensor._rebuild_from_type_v2: a tensor with attributes of its own, which are left out."""
    if not isinstance(function, Named) or function.make is None:
        raise TypeError("a tensor that is made by nothing")
    return function.make(*args)


def rebuild_jagged(state: Any) -> Nested:
    """torch.nested's jagged layout: values (sum of n, ...), offsets (B+1,), and lengths (B,) where there are gaps."""
    values, offsets, axis = state["values"], state["offsets"], state.get("_ragged_idx", 1)
    return jagged(values, offsets, state.get("lengths"), int(axis))


def rebuild_strided(buffer: Any, sizes: Any, strides: Any, offsets: Any) -> Nested:
    """torch.nested's strided layout: one buffer, and size, stride and offset of every row."""

    def rows() -> list[NDArray[Any]]:
        shapes, steps, starts = (np.asarray(v, np.int64).tolist() for v in (sizes, strides, offsets))
        if not isinstance(buffer, Tensor):
            raise TypeError("a nested tensor without values")
        return [
            np.asarray(Tensor(buffer.storage, buffer.dtype, buffer.offset + start, tuple(shape), tuple(step)))
            for shape, step, start in zip(shapes, steps, starts, strict=True)
        ]

    return Nested(rows)


def _size(items: Sequence[Any] = ()) -> tuple[int, ...]:
    return tuple(int(n) for n in items)


class Device(Buildable):
    """torch.device: where a tensor was; not needed."""

    def __init__(self, *_place: Any) -> None:
        pass


TORCH: dict[tuple[str, str], Named] = {
    **{("torch", name): Named(f"torch.{name}") for name in (*DTYPES, *STORAGES, "Tensor")},
    ("torch.storage", "UntypedStorage"): Named("torch.UntypedStorage"),
    ("torch.nn.parameter", "Parameter"): Named("torch.nn.Parameter"),
    ("torch", "Size"): Named("torch.Size", _size, _size),
    ("torch", "device"): Named("torch.device", Device),
    ("torch.serialization", "_get_layout"): Named("torch.layout", str),
    ("torch._utils", "_rebuild_tensor_v2"): Named("torch._rebuild_tensor_v2", rebuild),
    ("torch._utils", "_rebuild_tensor_v3"): Named("torch._rebuild_tensor_v3", rebuild_typed),
    ("torch._utils", "_rebuild_parameter"): Named("torch._rebuild_parameter", rebuild_parameter),
    ("torch._utils", "_rebuild_nested_tensor"): Named("torch._rebuild_nested_tensor", rebuild_strided),
    ("torch._tensor", "_rebuild_from_type_v2"): Named("torch._rebuild_from_type_v2", rebuild_subclass),
    ("torch.nested._internal.nested_tensor", "_rebuild_njt"): Named("torch._rebuild_njt", rebuild_jagged),
    ("torch.nested._internal.nested_tensor", "NestedTensor"): Named("torch.NestedTensor"),
    # Compiler hints that nested tensors carry along.
    ("torch._dynamo.decorators", "_DimRange"): Named("torch._DimRange", None, lambda *_: Inert("torch._DimRange")),
}
