"""The allow-list of plain data: containers, numpy arrays, dates. Format modules add their own names to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from timscope.data.importers.numpy_pickles import NUMPY
from timscope.data.importers.pickle_names import Buildable, Named, keys
from timscope.data.importers.pickles import Persistent, read_pickle
from timscope.data.importers.placeholders import unknown

Names = Mapping[tuple[str, str], Named]


class Buffer(Buildable):
    """io.BytesIO: its bytes in `data`."""

    __slots__ = ("data",)

    def __init__(self, data: Any = b"") -> None:
        self.data = data

    def build(self, state: Any) -> None:
        """(bytes, position, attributes)"""
        self.data = state[0]


def _bytes(data: Any = b"", encoding: Any = None) -> bytes:
    """bytearray and bytes of protocols 2 to 4; never of a size alone."""
    if isinstance(data, str) and encoding in ("latin-1", "latin1"):
        return data.encode("latin-1")
    if isinstance(data, bytes | memoryview | list):
        return bytes(data)
    raise TypeError("a byte string that is none")


def _dict(*args: Any) -> dict[Any, Any]:
    """dict, OrderedDict and defaultdict: items may come as pairs; a factory is left out."""
    items = [a for a in args if isinstance(a, list | dict)]
    if not items:
        return {}
    return dict(items[0]) if isinstance(items[0], dict) else {keys([key])[0]: value for key, value in items[0]}


def _list(items: Any = ()) -> list[Any]:
    return list(items)


def _set(items: Any = ()) -> set[Any]:
    return set(keys(items))


def _frozenset(items: Any = ()) -> frozenset[Any]:
    return frozenset(keys(items))


def _tuple(items: Any = ()) -> tuple[Any, ...]:
    return tuple(items)


def _complex(real: float, imaginary: float) -> complex:
    return complex(float(real), float(imaginary))


_BUILTINS = {
    "dict": Named("dict", _dict, _dict), "list": Named("list", _list, _list), "set": Named("set", _set, _set),
    "frozenset": Named("frozenset", _frozenset, _frozenset), "tuple": Named("tuple", _tuple, _tuple),
    "bytearray": Named("bytearray", _bytes), "bytes": Named("bytes", _bytes), "complex": Named("complex", _complex),
    **{name: Named(name) for name in ("int", "float", "bool", "str", "object")},
}  # fmt: skip

PLAIN: dict[tuple[str, str], Named] = {
    **NUMPY,
    **{(module, name): named for module in ("builtins", "__builtin__") for name, named in _BUILTINS.items()},
    ("collections", "OrderedDict"): Named("OrderedDict", _dict, _dict),
    ("collections", "defaultdict"): Named("defaultdict", _dict, _dict),
    ("_io", "BytesIO"): Named("io.BytesIO", Buffer, Buffer),
}


def load_pickle(
    view: memoryview,
    place: str,
    names: Names | None = None,
    placeholders: set[str] | None = None,
    persistent: Persistent | None = None,
) -> Any:
    """The object in a pickle, made of plain data and of what `names` adds; see `read_pickle` for errors.

    `placeholders`: a set that takes the names of unknown classes whose objects became `Inert`; None refuses them.
    """
    known = {**PLAIN, **(names or {})}

    def find(module: str, name: str) -> Named:
        return known.get((module, name)) or unknown(module, name, place, placeholders)

    return read_pickle(view, place, find, persistent)
