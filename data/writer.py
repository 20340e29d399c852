"""The writer: takes columns from a training process and puts them on disk from a thread of its own.

The queue is bounded in parts. When it is full, `overflow="block"` waits and `overflow="drop"` counts the part as lost;
nothing else can make the caller wait. A write error never reaches the caller unless `strict=True`: it is logged once,
kept in the manifest, and the step it hit is never marked complete.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
from collections import defaultdict
from typing import Any, Literal

from timscope.data.layout import MANIFEST, Marker, marker_path, markers, part_path, step_dir
from timscope.data.manifest import Manifest
from timscope.data.manifest_file import read_manifest, write_manifest
from timscope.data.parts import Columns, to_arrow, write_part
from timscope.data.schema import TABLES
from timscope.data.storage import Storage

logger = logging.getLogger("timscope")

_MAX_ERRORS = 20


class RunWriter:
    """Writes one rank's share of a run. Not for sharing between processes; each rank makes its own.

    Opening a directory that already holds a run resumes it: complete steps of this rank are kept and refused if they
    are put again.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        manifest: Manifest | None = None,
        *,
        rank: int = 0,
        world_size: int = 1,
        queue_size: int = 256,
        overflow: Literal["block", "drop"] = "block",
        strict: bool = False,
    ) -> None:
        self.storage, self.rank, self.strict = Storage(path), rank, strict
        self.drops = 0
        self.errors: list[str] = []
        self._overflow = overflow
        self._slots = threading.Semaphore(queue_size)
        self._queue: queue.SimpleQueue[tuple[str, int, Columns | None] | None] = queue.SimpleQueue()
        self._parts: dict[int, Marker] = {}
        self._numbers: dict[tuple[str, int], int] = {}
        self._failed: set[int] = set()
        self._dropped: dict[int, int] = defaultdict(int)
        self._raise: Exception | None = None
        self._closed = False
        self.manifest = self._open_manifest(manifest or Manifest(), world_size)
        self.done = {step for step, ranks in markers(self.storage).items() if rank in ranks}
        self._thread = threading.Thread(target=self._run, name="timscope-writer", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def _open_manifest(self, manifest: Manifest, world_size: int) -> Manifest:
        if self.storage.exists(MANIFEST):
            old = read_manifest(self.storage)
            state = old.recorder.model_copy(update={"resumes": old.recorder.resumes + 1, "closed": False})
            manifest = old.model_copy(update={"recorder": state})
        else:
            manifest = manifest.model_copy(update={"world_size": world_size})
        if self.rank == 0:
            write_manifest(self.storage, manifest)
        return manifest

    def put(self, table: str, step: int, columns: Columns) -> bool:
        """Queue one part. The arrays belong to the writer afterwards: do not change them.

        Returns False where the part was not taken: the queue was full (overflow="drop"), the step is already complete
        on disk, or the writer is closed.
        """
        self._reraise()
        if table not in TABLES:
            raise KeyError(table)
        if self._closed or step in self.done:
            self._note(f"step {step} is already complete or the recorder is closed: its {table} were not written again")
            return False
        if not self._slots.acquire(blocking=self._overflow == "block"):
            self.drops += 1
            self._dropped[step] += 1
            return False
        self._queue.put((table, step, columns))
        return True

    def complete(self, step: int) -> None:
        """Mark the step finished, after everything put before. Never waits."""
        self._reraise()
        if step not in self.done and not self._closed:
            self.done.add(step)
            self._queue.put(("", step, None))

    def update_manifest(self, **fields: Any) -> None:
        """Replace top-level fields of the manifest and rewrite it (rank 0 only)."""
        self.manifest = self.manifest.model_copy(update=fields)
        if self.rank == 0:
            try:
                write_manifest(self.storage, self.manifest)
            except Exception as error:
                self._fail(error, f"manifest: {error}")

    def close(self) -> None:
        """Write what is queued, then the final state into the manifest. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._queue.put(None)
        self._thread.join()
        state = {"drops": self.drops, "errors": self.errors[:_MAX_ERRORS], "closed": True}
        self.update_manifest(recorder=self.manifest.recorder.model_copy(update=state))
        self._reraise()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    # --- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            table, step, columns = item
            try:
                if columns is None:
                    self._mark(step)
                else:
                    self._write(table, step, columns)
            except Exception as error:
                self._failed.add(step)
                self._fail(error, f"step {step} {table or 'marker'}: {error}")
            finally:
                if columns is not None:
                    self._slots.release()

    def _write(self, table: str, step: int, columns: Columns) -> None:
        data = to_arrow(table, step, columns)
        path = part_path(table, step, self.rank, self._number(table, step))
        size = write_part(self.storage, path, data)
        marker = self._parts.setdefault(step, Marker(step, self.rank))
        marker.parts.append((table, path, data.num_rows, size))

    def _number(self, table: str, step: int) -> int:
        """The next free part number: a resumed run never overwrites what a crash left behind."""
        key = (table, step)
        if key not in self._numbers:
            mine = f"rank={self.rank}-"
            self._numbers[key] = sum(n.startswith(mine) for n in self.storage.names(step_dir(table, step)))
        self._numbers[key] += 1
        return self._numbers[key] - 1

    def _mark(self, step: int) -> None:
        if step in self._failed:
            return
        marker = self._parts.pop(step, Marker(step, self.rank))
        marker.dropped = self._dropped.pop(step, 0)
        self.storage.write_bytes(marker_path(step, self.rank), marker.to_bytes())

    # --- errors ---------------------------------------------------------------------------------------------------

    def _note(self, message: str) -> None:
        if not self.errors:
            logger.error("timscope recorder: %s (training goes on; further errors are kept in the manifest)", message)
        if message not in self.errors:
            self.errors.append(message)

    def _fail(self, error: Exception, message: str) -> None:
        self._note(message)
        if self.strict and self._raise is None:
            self._raise = error

    def _reraise(self) -> None:
        if self._raise is not None:
            error, self._raise = self._raise, None
            raise error
