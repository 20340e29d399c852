"""What text dumps share: their own number columns, kept under the framework's names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from timscope.data.schema import SEQUENCES


def own_numbers(data: Mapping[str, Any], known: Collection[str]) -> dict[str, float | None]:
    """The fields of `data` that are numbers and not `known`, for `Row.extra`.

    A name that the sequences table has already gets the prefix "dump/". Text and nested fields have no column there.
    """
    found: dict[str, float | None] = {}
    for name, value in data.items():
        if name not in known and isinstance(value, int | float):
            found[f"dump/{name}" if name in SEQUENCES.names else name] = float(value)
    return found
