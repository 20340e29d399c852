"""One daemon thread that runs jobs in order, with a bound on how many may wait.

Only C-level queues lie between the two threads, no Python lock: a signal handler that interrupts the caller anywhere
can still flush. After a fork the child has no thread, so there every method says no instead of waiting for one.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Job:
    """Work for the thread. `what` names it in errors, `step` is the step it belongs to, `slot` is given back after."""

    what: str
    run: Callable[[], None]
    step: int | None = None
    slot: bool = True


class Worker:
    """Runs `Job`s one after another; `fail(job, error)` is told of what they raise, on the thread."""

    def __init__(self, size: int, fail: Callable[[Job, BaseException], None]) -> None:
        self._fail, self._pid = fail, os.getpid()
        self._slots: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(size):
            self._slots.put(None)
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="timscope-writer", daemon=True)
        self._thread.start()

    @property
    def mine(self) -> bool:
        """Whether this process has the thread; false in a forked child."""
        return os.getpid() == self._pid

    @property
    def inside(self) -> bool:
        """Whether a job of this thread is asking: what it submits runs at once, since it would wait for itself."""
        return threading.current_thread() is self._thread

    def submit(self, job: Job, *, wait: bool) -> bool:
        """Queue a job that takes a slot. False where none is free and `wait` is not set, or in a forked child."""
        if not self.mine:
            return False
        if self.inside:
            self._do(replace(job, slot=False))
            return True
        try:
            self._slots.get(block=wait)
        except queue.Empty:
            return False
        self._queue.put(job)
        return True

    def post(self, job: Job) -> None:
        """Queue a small job that needs no slot. Never waits."""
        job = replace(job, slot=False)
        if self.inside:
            self._do(job)
        elif self.mine:
            self._queue.put(job)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything queued so far has run; false after `timeout` seconds or where there is no thread."""
        if not self.mine or not self._thread.is_alive() or self.inside:
            return False
        done = threading.Lock()
        done.acquire()
        self.post(Job("flush", done.release))
        return done.acquire(timeout=-1 if timeout is None else timeout)

    def close(self, timeout: float | None = None) -> bool:
        """Run what is queued and end the thread; false where it is still busy after `timeout` seconds."""
        if not self.mine:
            return False
        self._queue.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _loop(self) -> None:
        while (job := self._queue.get()) is not None:
            self._do(job)

    def _do(self, job: Job) -> None:
        try:
            job.run()
        except BaseException as error:  # nothing may end this thread: callers wait for it
            self._fail(job, error)
        finally:
            if job.slot:
                self._slots.put(None)
