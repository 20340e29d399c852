"""Whether a step's values fit the run's columns, each on its own, before the writer sees them.

The writer takes a table or refuses it, and with the table the whole step is lost. So what does not fit is turned off
here: a reward that is a word must not cost the step its log-probs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from timscope.data.schema import OPEN_TABLES, TABLES
from timscope.loggers.guard import Guard


def fitted(table: str, columns: Mapping[str, Any], guard: Guard, prefix: str = "") -> dict[str, Any]:
    """`columns` (one list an entry) as Arrow arrays of the table's types, without those that do not fit.

    Ids that are numbers become text, lone surrogates their escapes. A column is turned off under `prefix` and its name.
    """
    kept: dict[str, Any] = {}
    for name, values in columns.items():
        label = f"{prefix}{name}"
        if guard.on(label):
            with guard.column(label):
                kept[_name(name)] = _array(values, _type(table, name))
    return kept


def whole_number(value: Any) -> int:
    """A Python int of a number, a numpy scalar or a tensor of one. An ArithmeticError, TypeError or ValueError else."""
    number = value if isinstance(value, int) else float(value)
    if number != int(number):
        raise ValueError(f"{value!r} is no whole number")
    # Not by way of float: it would round large numpy integers.
    return int(value)


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a column's name must be text, not {type(name).__name__}")
    return name.encode().decode()  # UnicodeEncodeError (a ValueError) for lone surrogates, which Parquet cannot hold


def _type(table: str, name: str) -> pa.DataType:
    schema = TABLES[table]
    if name in schema.names:
        return schema.field(name).type
    if table not in OPEN_TABLES:
        raise ValueError(f"no such column; there are {', '.join(schema.names)}")
    return pa.float64()


def _array(values: Any, kind: pa.DataType) -> Any:
    if isinstance(values, pa.Array):
        return values
    if pa.types.is_string(kind):
        values = [_text(v) for v in values]
    elif pa.types.is_integer(kind):
        values = [None if v is None else whole_number(v) for v in values]
    return pa.array(values, type=kind, from_pandas=False)


def _text(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    return value
