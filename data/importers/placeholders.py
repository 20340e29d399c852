"""Objects of unknown classes: kept as inert shells that hold nothing, or refused.

Dumps carry user objects (metadata, configurations) next to the numbers. They are not needed, so where a format says so
they become `Inert`. Names from Python's own library are refused even then, save a few plain data classes: no dump of
numbers needs `os.system`.
"""

from __future__ import annotations

import sys
from typing import Any

from timscope.data.errors import BadInput
from timscope.data.importers.pickle_names import Buildable, Named

# Standard-library modules whose classes are plain values.
_VALUES = frozenset({"argparse", "array", "collections", "datetime", "decimal", "enum", "fractions", "pathlib", "uuid"})


class Inert(Buildable):
    """Stands for an object that was not read. It never does anything."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<{self.name}, not read>"

    def build(self, state: Any) -> None:
        """The state is left out."""

    def take_items(self, items: list[Any]) -> None:
        """Items are left out."""


def unknown(module: str, name: str, place: str, placeholders: set[str] | None) -> Named:
    """What an unlisted name stands for: a maker of `Inert`, noted in `placeholders`; refused where that is None.

    Raises BadInput that names it.
    """
    full = f"{module}.{name}"
    top = module.split(".")[0]
    library = top in sys.stdlib_module_names or top in ("__builtin__", "copy_reg", "nt", "posix", "timscope")
    hidden = any(part.startswith("__") for part in name.split("."))  # a class's own machinery, not a class
    if placeholders is None or hidden or (library and top not in _VALUES):
        raise BadInput(
            f"{place}: the pickle names {full}, which is not plain data; nothing was run. Check where this file comes "
            "from"
        )
    placeholders.add(full)

    def make(*_args: Any, **_keywords: Any) -> Inert:
        return Inert(full)

    return Named(full, make, make)
