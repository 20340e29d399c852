"""TensorDicts and DataProtos, the batches of verl and ROLL, as they are pickled: a dict of columns with B rows each."""

from __future__ import annotations

from typing import Any

import numpy as np

from timscope.data.importers.pickle_names import Buildable, Named, mapping
from timscope.data.importers.placeholders import Inert
from timscope.data.importers.tensors import DTYPES, Nested, Tensor, jagged
from timscope.data.importers.torch_file import load_torch
from timscope.data.importers.unpickle import Buffer


class TensorDict(Buildable):
    """tensordict.TensorDict: its columns by name."""

    def __init__(self, fields: dict[str, Any] | None = None) -> None:
        self.fields: dict[str, Any] = fields or {}

    def build(self, state: Any) -> None:
        """The instance's attributes; the columns are in `_tensordict`."""
        self.fields = mapping(state["_tensordict"])


class NonTensor(Buildable):
    """tensordict.NonTensorData: one value for all rows."""

    def __init__(self) -> None:
        self.data: Any = None

    def build(self, state: Any) -> None:
        """The instance's attributes; the value is beside the (empty) tensors."""
        beside = state.get("non_tensordict", state.get("_non_tensordict", {}))
        self.data = beside.get("data")


class Stack(Buildable):
    """tensordict.NonTensorStack and lazy stacks: one item a row."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    def build(self, state: Any) -> None:
        """The instance's attributes."""
        self.items = list(state["tensordicts"])


class DataProto(Buildable):
    """verl's and ROLL's batch: `columns` (tensors and object arrays) and `meta`."""

    def __init__(self, place: str, placeholders: set[str] | None) -> None:
        self._place, self._placeholders = place, placeholders
        self.columns: dict[str, Any] = {}
        self.meta: dict[str, Any] = {}

    def build(self, state: Any) -> None:
        """(batch, non-tensor batch, ..., meta): the batch is a torch file inside the pickle."""
        if not isinstance(state, tuple) or len(state) < 3:
            raise TypeError("a DataProto of an unknown layout")
        batch = state[0].data if isinstance(state[0], Buffer) else state[0]
        if isinstance(batch, bytes | memoryview):
            batch = load_torch(memoryview(batch), f"{self._place} (batch)", TENSORDICT, self._placeholders)
        if not isinstance(batch, TensorDict) and batch is not None:
            raise TypeError("a DataProto whose batch is no TensorDict")
        self.columns = {**(batch.fields if batch else {}), **mapping(state[1] or {})}
        self.meta = mapping(state[-1] or {})


def data_proto(place: str, placeholders: set[str] | None) -> Named:
    """The class DataProto, for one file."""

    def make(*_args: Any) -> DataProto:
        return DataProto(place, placeholders)

    return Named("DataProto", make, make)


def rows_of(value: Any, count: int) -> list[Any] | None:
    """A column as `count` rows (arrays, numbers or objects), None for a column that is not there or was not read.

    Raises ValueError where the column has another number of rows.
    """
    if value is None or isinstance(value, Inert | TensorDict):
        return None
    if isinstance(value, NonTensor):
        return [value.data] * count
    if isinstance(value, Stack):
        rows: list[Any] = [item.data if isinstance(item, NonTensor) else item for item in value.items]
    elif isinstance(value, Nested):
        rows = list(value.rows())
    elif isinstance(value, Tensor):
        rows = list(np.asarray(value))
    else:
        rows = list(value)
    if len(rows) != count:
        raise ValueError(f"{len(rows)} rows where the batch has {count}")
    return rows


def _make(kind: Any, state: Any) -> Any:
    """tensordict's own rebuilder: a class and its attributes."""
    made = kind.new()
    made.build(state)
    return made


def _consolidated(meta: Any, storage: Any) -> TensorDict:
    """A TensorDict whose columns lie in one storage of bytes: (type, shape, first byte, end, padding) a column."""
    if not isinstance(storage, Tensor):
        raise TypeError("a consolidated TensorDict without bytes")
    fields: dict[str, Any] = {name: _alone(entry[0]) for name, entry in meta["non_tensors"].items()}
    leaves = {name: (_leaf(leaf, storage), leaf) for name, leaf in meta["leaves"].items()}
    for name, (tensor, leaf) in leaves.items():
        if name.startswith("<NJT_OFFSETS>"):
            bare = name.removeprefix("<NJT_OFFSETS>")
            values, lengths = leaves[f"<NJT_VALUES>{bare}"][0], leaves.get(f"<NJT_LENGTHS>{bare}", (None,))[0]
            fields[bare] = jagged(values, tensor, lengths, int(leaf[5]) if len(leaf) > 5 else 1)
        elif not name.startswith("<NJT"):
            fields[name] = tensor
    return TensorDict(fields)


def _alone(value: Any) -> NonTensor:
    made = NonTensor()
    made.data = value
    return made


def _leaf(leaf: Any, storage: Tensor) -> Tensor:
    name, shape, start = str(leaf[0]).removeprefix("torch."), tuple(int(n) for n in leaf[1]), int(leaf[2])
    stride, step = [], 1
    for n in reversed(shape):
        stride.append(step)
        step *= max(n, 1)
    if name not in DTYPES:
        raise TypeError(f"tensors of type {name} are not read here")
    size = np.dtype(DTYPES[name]).itemsize
    if start % size:
        raise ValueError("a column that is not aligned")
    return Tensor(storage.storage, name, start // size, shape, tuple(reversed(stride)))


_CLASSES = {
    "TensorDict": TensorDict,
    "NonTensorData": NonTensor,
    "NonTensorStack": Stack,
    "LazyStackedTensorDict": Stack,
}
_MODULES = ("tensordict._td", "tensordict._lazy", "tensordict.tensorclass", "tensordict", "tensordict.tensordict")
TENSORDICT: dict[tuple[str, str], Named] = {
    **{(m, name): Named(name, kind, kind) for m in _MODULES for name, kind in _CLASSES.items()},
    ("tensordict._reductions", "_make_td"): Named("tensordict._make_td", _make),
    ("tensordict._reductions", "_rebuild_tensordict_files_consolidated"): Named(
        "tensordict._consolidated", _consolidated
    ),
}
