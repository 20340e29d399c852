"""From plain columns (lists, numpy or Arrow arrays) to one immutable Parquet part."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from inspect import signature
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from timscope.data.errors import BadInput
from timscope.data.schema import OPEN_TABLES, TABLES
from timscope.data.storage import Storage

Columns = Mapping[str, Any]

# Rows of a row group, which is one page a column. Split into byte streams it gives zstd blocks of 128 KiB that hold one
# stream each and get a code of their own: log-probs take 2.6 bytes instead of 3.1, in no more time.
_ROWS = 131_072
# pyarrow 23 and later cut pages at 20,000 rows unless told otherwise; earlier ones cut by size alone.
_ONE_PAGE = {"max_rows_per_page": _ROWS} if "max_rows_per_page" in signature(pq.write_table).parameters else {}


def to_arrow(table: str, step: int, columns: Columns, schema: pa.Schema | None = None) -> pa.Table:
    """An Arrow table with the schema of `table` (or the one given). Columns not given are NULL; of tokens, left out.

    None and masked numpy entries become NULL, NaN stays NaN. Raises BadInput for an unknown column, for columns of
    different lengths and for values that do not fit the column's type.
    """
    schema = TABLES[table] if schema is None else schema
    extra = [name for name in columns if name not in schema.names]
    if extra and table not in OPEN_TABLES:
        raise BadInput(f"table {table} has no column {extra[0]!r}: it takes {', '.join(schema.names)}")
    lengths = {name: len(values) for name, values in columns.items() if name != "step"}
    rows = next(iter(lengths.values()), 1)
    for name, length in lengths.items():
        if length != rows:
            raise BadInput(f"{table}: column {name!r} has {length} rows where {next(iter(lengths))!r} has {rows}")
    fields, arrays = [], []
    for field in [*schema, *(pa.field(name, pa.float64()) for name in extra)]:
        values = np.full(rows, step, np.int32) if field.name == "step" else columns.get(field.name)
        if values is None and field.nullable and _of_tokens(schema):
            continue
        arrays.append(_column(table, field, values, rows))
        fields.append(field)
    return _sorted(pa.Table.from_arrays(arrays, schema=pa.schema(fields)))


def _column(table: str, field: pa.Field, values: Any, rows: int) -> pa.Array:
    if values is None:
        if not field.nullable:
            raise BadInput(f"{table}: column {field.name!r} is part of the key and must be given")
        return pa.nulls(rows, field.type)
    try:
        if isinstance(values, pa.Array):
            array = values
        elif isinstance(values, np.ma.MaskedArray):
            array = pa.array(values.data, mask=np.ma.getmaskarray(values))
        elif isinstance(values, np.ndarray) and values.dtype == bool and values.ndim == 1:
            bits = np.packbits(values, bitorder="little")  # Arrow's own conversion takes five times as long
            array = pa.Array.from_buffers(pa.bool_(), rows, [None, pa.py_buffer(bits)])
        elif isinstance(values, np.ndarray):
            array = pa.array(np.ascontiguousarray(values))
        else:
            array = pa.array(values, type=field.type, from_pandas=False)
        # float64 -> float32 rounds and that is wanted; integers must fit.
        return (
            array if array.type == field.type else pc.cast(array, field.type, safe=not pa.types.is_floating(field.type))
        )
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError, ValueError) as error:
        raise BadInput(f"{table}: column {field.name!r} does not fit {field.type}: {error}") from error


def _sorted(table: pa.Table) -> pa.Table:
    """Sort token rows by sequence and position: readers and the delta encoding rely on it."""
    if not {"sequence", "position"} <= set(table.schema.names):
        return table
    sequence, position = (table.column(n).to_numpy() for n in ("sequence", "position"))
    ahead, same = sequence[1:] > sequence[:-1], sequence[1:] == sequence[:-1]
    if not np.all(ahead | (same & (position[1:] > position[:-1]))):
        table = table.take(pa.array(np.lexsort((position, sequence))))
    return table


def encoding(schema: pa.Schema) -> dict[str, Any]:
    """Arguments for pyarrow.parquet.write_table, chosen by CPU time within 13 bytes a token (see bench_writer.py).

    Numbers are split into byte streams, whose upper ones compress to next to nothing; step and sequence come in runs
    and need no splitting. In tables of tokens whatever is no float goes to LZ4, which makes two of a token id's four
    bytes in a third of zstd's time. Floats stay with zstd: LZ4 cannot pack the skewed bytes of their exponents, and a
    vocabulary of 150,000 would pass 13 bytes with it. Statistics only where a reader can skip by them: each is a pass
    over the values.
    """
    splits: dict[str, str] = {}
    for field in schema:
        if pa.types.is_list(field.type) and pa.types.is_floating(field.type.value_type):
            splits[f"{field.name}.list.element"] = "BYTE_STREAM_SPLIT"
        elif _is_number(field.type) and field.name not in ("step", "sequence"):
            splits[field.name] = "BYTE_STREAM_SPLIT"
    codec: Any = "zstd"
    level: Any = 1
    if _of_tokens(schema):
        codec = {field.name: "zstd" if pa.types.is_floating(field.type) else "lz4" for field in schema}
        level = {name: 1 for name, chosen in codec.items() if chosen == "zstd"} or None
    return {
        "compression": codec,
        "compression_level": level,
        "column_encoding": splits,
        "use_dictionary": [field.name for field in schema if pa.types.is_string(field.type)],
        "write_statistics": [name for name in ("step", "sequence", "position") if name in schema.names],
        "row_group_size": _ROWS,
        **_ONE_PAGE,
    }


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _of_tokens(schema: pa.Schema) -> bool:
    return "position" in schema.names


@cache
def warm_up() -> None:
    """Encode next to nothing once: pyarrow's first table imports half a second of modules, and the thread that trains
    had better not wait for that in the middle of a step."""
    table = to_arrow("tokens", 0, {"sequence": np.zeros(1, np.int64), "position": [0]})
    pq.write_table(table, pa.BufferOutputStream(), **encoding(table.schema))


def write_part(storage: Storage, path: str, table: pa.Table) -> int:
    """Write one part atomically; returns its bytes."""
    said = _said(table) if _of_tokens(table.schema) else table

    def fill(handle: IO[Any]) -> None:
        pq.write_table(said, handle, **encoding(said.schema))

    return storage.write(path, fill)


def _said(table: pa.Table) -> pa.Table:
    """A token table as it is stored. A column that nobody measured is left out, not written as NULLs: the reader puts
    it back, and eight such columns took a quarter of the time. A column without NULLs is stored as required: to say of
    each value that it is there costs as much as to write it."""
    missing = {name: table[name].null_count for name in table.schema.names}
    fields = [
        field.with_nullable(field.nullable and missing[field.name] > 0)
        for field in table.schema
        if not table.num_rows or missing[field.name] < table.num_rows
    ]
    return pa.Table.from_arrays([table[field.name] for field in fields], schema=pa.schema(fields))
