"""DuckDB views over a run's parts, so that every question is SQL over the same few tables."""

from __future__ import annotations

import re
from collections.abc import Sequence

import duckdb
import pyarrow as pa

from timscope.data.replays import Replay
from timscope.data.schema import REPLAY_COLUMNS, REPLAY_ENTROPIES, TABLES, TOKENS, replay_schema

_TYPES = {
    "int32": "INTEGER",
    "int64": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "bool": "BOOLEAN",
    "string": "VARCHAR",
    "list<item: int32>": "INTEGER[]",
    "list<element: int32>": "INTEGER[]",
    "list<item: float>": "FLOAT[]",
    "list<element: float>": "FLOAT[]",
}


def quote(name: str) -> str:
    """A quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A quoted SQL string."""
    return "'" + text.replace("'", "''") + "'"


def _file(path: str) -> str:
    """A quoted file name as DuckDB takes it: it expands *, ? and [ in names, and would read the files of other runs."""
    return literal(re.sub(r"[*?\[]", r"[\g<0>]", path))


def _table_view(con: duckdb.DuckDBPyConnection, name: str, schema: pa.Schema, parts: Sequence[str]) -> None:
    """A view with every schema column (NULL where no part has it), then whatever else the parts hold."""
    types = {f.name: _TYPES[str(f.type)] for f in schema}
    if not parts:
        columns = ", ".join(f"NULL::{t} AS {quote(c)}" for c, t in types.items())
        con.execute(f"CREATE OR REPLACE VIEW {quote(name)} AS SELECT {columns} WHERE false")
        return
    files = ", ".join(map(_file, parts))
    # union_by_name: steps of one run may carry different metric columns.
    source = f"read_parquet([{files}], union_by_name = true, hive_partitioning = false)"
    there = [row[0] for row in con.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()]
    select = [quote(c) if c in there else f"NULL::{t} AS {quote(c)}" for c, t in types.items()]
    select += [quote(c) for c in there if c not in types]
    con.execute(f"CREATE OR REPLACE VIEW {quote(name)} AS SELECT {', '.join(select)} FROM {source}")


def create_views(con: duckdb.DuckDBPyConnection, parts: dict[str, list[str]], replays: Sequence[Replay]) -> None:
    """Create tokens, sequences, steps, gradients, one replay_NAME a replay, and witnesses.

    Of several `replays` with one engine the last one speaks in `witnesses`.
    """
    for name, schema in TABLES.items():
        _table_view(con, name, schema, parts.get(name, []))
    chosen: dict[str, Replay] = {}
    for replay in replays:
        _table_view(con, f"replay_{replay.name}", replay_schema(replay.manifest.engine), replay.parts)
        if replay.parts:
            chosen[replay.manifest.engine] = replay
    con.execute(f"CREATE OR REPLACE VIEW witnesses AS {_witnesses(chosen)}")


def _witnesses(chosen: dict[str, Replay]) -> str:
    """Every response token with all that was said of it: one row a token, NULL where a witness is missing."""
    own = {name: f"t.{name}" for name in TOKENS.names}
    for name in ("advantage", "weight_version"):
        own[name] = f"coalesce(t.{name}, s.{name})"
    joins = ["LEFT JOIN sequences s USING (step, sequence)"]
    for engine, column in REPLAY_COLUMNS.items():
        entropy = REPLAY_ENTROPIES[engine]
        if engine in chosen:
            alias = f"r_{engine}"
            joins.append(f"LEFT JOIN {quote('replay_' + chosen[engine].name)} {alias} USING (step, sequence, position)")
            said, spread = f"{alias}.{column}", f"{alias}.{entropy}"
        else:
            said, spread = "NULL::FLOAT", "NULL::FLOAT"
        # A rollout engine may have logged its own re-score; a replay fills only what is missing.
        own[column] = f"coalesce(t.{column}, {said})" if column in TOKENS.names else said
        own[entropy] = spread
    select = ", ".join(f"{source} AS {name}" for name, source in own.items())
    return f"SELECT {select} FROM tokens t {' '.join(joins)}"
