"""Reading the token table through DuckDB, whole sequences at a time, one chunk ahead of who works on it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timscope.analysis.check.chunks import FLOATS, NO_INT, Bools, Chunk, Floats32, Ints
from timscope.data import Run

ROWS = 500_000


def present(run: Run) -> dict[str, int]:
    """How many values each column of the token table holds, `mask` counting those in the loss."""
    counts = ", ".join(f"count({name}) AS {name}" for name in (*FLOATS, "token_id", "weight_version"))
    row = run.sql(f"SELECT {counts}, count(CASE WHEN mask THEN 1 END) AS mask FROM tokens").row(0, named=True)
    return {name: int(n) for name, n in row.items()}


def _query(there: dict[str, int]) -> str:
    """Only columns that hold something: those of NULLs cost as much to read as the others."""
    names = [name for name in (*FLOATS, "token_id", "weight_version") if there[name]]
    return f"SELECT step, sequence, position, mask::TINYINT AS mask, {', '.join(names)} FROM tokens"


def _ints(column: pa.ChunkedArray, missing: int) -> Ints:
    filled: Ints = pc.fill_null(column, missing).to_numpy()
    return filled


def _chunk(table: pa.Table, starts: npt.NDArray[np.int64]) -> Chunk:
    n = table.num_rows
    null: dict[str, Bools | bool | None] = {}
    values: dict[str, Floats32] = {}
    nothing = np.broadcast_to(np.float32(np.nan), n)
    for name in FLOATS:
        column = table.column(name) if name in table.column_names else None
        nulls = n if column is None else column.null_count
        null[name] = None if nulls == 0 else True if column is None or nulls == n else column.is_null().to_numpy()
        values[name] = nothing if column is None or nulls == n else column.to_numpy()
    mask = table.column("mask")
    token, version = (table.column(c) if c in table.column_names else None for c in ("token_id", "weight_version"))
    return Chunk(
        step=table.column("step").to_numpy(),
        sequence=table.column("sequence").to_numpy(),
        position=table.column("position").to_numpy(),
        token=np.broadcast_to(np.int32(NO_INT), n) if token is None else _ints(token, NO_INT),
        version=None if version is None or version.null_count == n else _ints(version, NO_INT),
        mask=_ints(mask, 0) == 1,
        masked_null=mask.null_count,
        values=values,
        null=null,
        starts=starts,
    )


def _starts(table: pa.Table) -> npt.NDArray[np.int64]:
    step, sequence = table.column("step").to_numpy(), table.column("sequence").to_numpy()
    return np.flatnonzero(np.concatenate([[True], (np.diff(sequence) != 0) | (np.diff(step) != 0)]))


def _tables(run: Run, there: dict[str, int], rows: int) -> Iterator[tuple[pa.Table, npt.NDArray[np.int64]]]:
    """Tables of whole sequences with their starts; the last sequence of a table waits for the next one."""
    relation = run.connection.cursor().sql(_query(there))
    # The name changed in DuckDB 1.5; both give a pyarrow.RecordBatchReader.
    reader = getattr(relation, "to_arrow_reader", None) or relation.fetch_record_batch
    waiting: list[pa.Table] = []
    for batch in reader(rows):
        waiting.append(pa.Table.from_batches([batch]))
        if sum(t.num_rows for t in waiting) < rows:
            continue  # a batch never reaches over the end of a part, and parts may be small
        table = pa.concat_tables(waiting).combine_chunks()
        starts = _starts(table)
        waiting = [table]
        if len(starts) > 1:
            cut = int(starts[-1])
            yield table.slice(0, cut), starts[:-1]
            waiting = [table.slice(cut)]
    if waiting:
        table = pa.concat_tables(waiting).combine_chunks()
        if table.num_rows:
            yield table, _starts(table)


def chunks(run: Run, there: dict[str, int], rows: int = ROWS) -> Iterator[Chunk]:
    """All tokens of the run in chunks of about `rows`, read ahead by one on a thread of their own.

    `there`: what `present` said.
    """
    ready: queue.Queue[Chunk | BaseException | None] = queue.Queue(maxsize=1)
    stop = threading.Event()

    def produce() -> None:
        try:
            for table, starts in _tables(run, there, rows):
                item = _chunk(table, starts)
                while not stop.is_set():
                    try:
                        ready.put(item, timeout=0.1)
                        break
                    except queue.Full:
                        continue
                if stop.is_set():
                    return
            ready.put(None)
        except BaseException as error:  # handed to the reader, who raises it
            ready.put(error)

    thread = threading.Thread(target=produce, name="timscope-chunks", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        thread.join()
