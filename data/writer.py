"""The writer: takes columns from a training process and puts them on disk from a thread of its own.

The queue is bounded. When it is full, `overflow="block"` waits and `overflow="drop"` counts what was lost; nothing else
can make the caller wait. An error never reaches the caller unless `strict=True`: it is logged once, kept with the run
(see rank_state.py), and the step it hit is never marked complete.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from timscope.data.ledger import Ledger
from timscope.data.manifest import Manifest
from timscope.data.manifest_file import write_manifest
from timscope.data.parts import Columns, warm_up
from timscope.data.resume import finished_steps, open_manifest, open_state
from timscope.data.schema import TABLES
from timscope.data.step_files import StepFiles
from timscope.data.storage import Storage
from timscope.data.worker import Job, Worker

# At the end of the interpreter a dead disk must not hold the process for ever.
_EXIT_S = 300.0


class RunWriter:
    """Writes one rank's share of a run. Not for sharing between processes; each rank makes its own, and a forked child
    writes nothing. Opening a directory that already holds a run resumes it, see resume.py."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        manifest: Manifest | None = None,
        *,
        rank: int = 0,
        world_size: int = 1,
        queue_size: int = 64,
        overflow: Literal["block", "drop"] = "block",
        strict: bool = False,
    ) -> None:
        self.storage, self.rank = Storage(path), rank
        self._wait, self._closed = overflow == "block", False
        self._lock = threading.RLock()
        self.manifest, notes, fresh = open_manifest(self.storage, manifest or Manifest(), rank, world_size)
        state = open_state(self.storage, rank, world_size, None if rank else self.manifest.recorder.resumes)
        self.done = set() if fresh else finished_steps(self.storage, rank, world_size)
        self._ledger = Ledger(self.storage, state, strict)
        self._files = StepFiles(self.storage, rank, world_size, fresh)
        warm_up()
        self._worker = Worker(queue_size, self._job_failed)
        atexit.register(self.close, _EXIT_S)
        for note in notes:
            self.report(note)

    @property
    def drops(self) -> int:
        """Parts lost because the queue was full."""
        return self._ledger.state.drops

    @property
    def errors(self) -> list[str]:
        """What went wrong so far, the first ones."""
        return list(self._ledger.state.errors)

    @property
    def resumes(self) -> int:
        """How often the job had been restarted into this directory."""
        return self._ledger.state.resumes

    def put(self, table: str, step: int, columns: Columns) -> bool:
        """Queue one part. The arrays belong to the writer afterwards: do not change them.

        Returns False where the part was not taken: the queue was full (overflow="drop"), the step is already complete
        on disk, or the writer is closed.
        """
        if table not in TABLES:
            raise KeyError(table)
        tokens = len(next(iter(columns.values()), ())) if table == "tokens" else 0
        return self._put(Job(f"step {step} {table}", partial(self._files.write, step, {table: columns}), step), tokens)

    def put_later(self, step: int, job: Callable[[], Mapping[str, Columns]], tokens: int = 0) -> bool:
        """Queue parts that are made on the writer's thread: `job()` gives the columns by table. It takes one slot, so
        its parts are dropped together or not at all. What `job` holds must not be changed any more. `tokens`: how many
        it will write, for the count of what was dropped. Returns as `put` does."""
        return self._put(Job(f"step {step}", lambda: self._files.write(step, job()), step), tokens)

    def call(self, job: Callable[[], Any]) -> bool:
        """Run any `job` on the writer's thread, in the order of the queue. Returns False where the queue was full
        (overflow="drop") or the writer is closed. An error in it is kept like a write error."""
        return self._put(Job("job", job), 0)

    def complete(self, step: int) -> None:
        """Mark the step finished, after everything put before. Never waits."""
        self._ledger.check()
        if step not in self.done and not self._gone:
            self.done.add(step)
            self._worker.post(Job(f"step {step} marker", partial(self._mark, step), step))

    def report(self, message: str, *, log: bool = True) -> None:
        """Keep an error with the run. The first is logged, unless the caller has done so. Never raises."""
        self._ledger.report(message, log=log)

    def update_manifest(self, **fields: Any) -> None:
        """Replace top-level fields of the manifest and rewrite it (rank 0 only). Safe from the writer's thread too."""
        with self._lock:
            self.manifest = self.manifest.model_copy(update=fields)
            if self.rank == 0 and self._worker.mine:
                try:
                    write_manifest(self.storage, self.manifest)
                except Exception as error:
                    self._ledger.fail(error, f"manifest: {error}")

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until what was put so far is on disk; false after `timeout` seconds. For a signal handler: it takes no
        lock that the interrupted code may hold."""
        self._worker.post(Job("state", self._ledger.save))
        return self._worker.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Write what is queued, then the final state. Safe to call twice; gives up after `timeout` seconds."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._worker.post(Job("state", partial(self._ledger.save, closed=True)))
        if not self._worker.close(timeout):
            return
        state = {"drops": self.drops, "errors": self.errors, "closed": True}
        self.update_manifest(recorder=self.manifest.recorder.model_copy(update=state))
        self._ledger.check()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @property
    def _gone(self) -> bool:
        """Closed for the caller: jobs that were queued before may still put."""
        return self._closed and not self._worker.inside

    def _put(self, job: Job, tokens: int) -> bool:
        self._ledger.check()
        if self._gone:
            self.report("the recorder is closed: what came later was not written")
        elif job.step in self.done:
            self.report(f"step {job.step} is already complete: its first recording is kept")
        elif self._worker.submit(job, wait=self._wait):
            return True
        elif self._worker.mine:
            self._ledger.drop(job.step, tokens)
        return False

    def _mark(self, step: int) -> None:
        self._files.mark(step, self._ledger.lost(step))
        self._ledger.save_if_due()

    def _job_failed(self, job: Job, error: BaseException) -> None:
        if job.step is not None:
            self._files.failed.add(job.step)
        self._ledger.fail(error, f"{job.what}: {error}")
