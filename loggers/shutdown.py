"""SIGTERM: what is queued goes to disk, then the process ends exactly as it would have without timscope.

Complete steps that are queued are written, and a step whose optimizer step is done is completed; a step in the middle
stays incomplete. Then the handler that was there before runs; where there was none the default action is restored and
the signal is sent again, so the exit status is that of SIGTERM. A SIGTERM that was ignored stays ignored.

Handlers exist only in the main thread of the process that made the recorder: elsewhere nothing is installed, and a
forked child only passes the signal on. As with any Python handler, a process stuck in native code sees it late;
`sigterm=False` leaves the signal alone.
"""

from __future__ import annotations

import os
import signal
import threading
import weakref
from types import FrameType
from typing import Any, Protocol

# Launchers send SIGKILL about 30 s after SIGTERM.
_GRACE_S = 20.0


class Flushable(Protocol):
    """What can be watched."""

    def flush(self, timeout: float | None = None, *, last: bool = False) -> bool:
        """Write what is queued."""
        ...


_watched: weakref.WeakSet[Flushable] = weakref.WeakSet()
# pid: of the process that has the handler. A framework may put its own over ours and call ours from there, so ours is
# never installed twice.
_state: dict[str, Any] = {"previous": None, "pid": 0}


def watch(recorder: Flushable) -> None:
    """Flush `recorder` on SIGTERM, from now until `unwatch`."""
    if threading.current_thread() is not threading.main_thread():
        return
    if _state["pid"] != os.getpid():
        current = signal.getsignal(signal.SIGTERM)
        # None: a handler that Python did not install and could not restore.
        if current is signal.SIG_IGN or current is None:
            return
        # A forked child inherits ours, and what was there before it.
        previous = _state["previous"] if current is _handle else current
        _state.update(previous=previous, pid=os.getpid())
        signal.signal(signal.SIGTERM, _handle)
    _watched.add(recorder)


def unwatch(recorder: Flushable) -> None:
    """Leave `recorder` alone; the last one puts the earlier handler back, unless somebody has replaced ours."""
    _watched.discard(recorder)
    main = threading.current_thread() is threading.main_thread()
    if not _watched and main and signal.getsignal(signal.SIGTERM) is _handle:
        signal.signal(signal.SIGTERM, _state["previous"])
        _state["pid"] = 0


def _handle(number: int, frame: FrameType | None) -> None:
    previous = _state["previous"]
    if os.getpid() == _state["pid"]:
        for recorder in list(_watched):
            recorder.flush(_GRACE_S, last=previous is signal.SIG_DFL)
    if callable(previous):
        previous(number, frame)
    else:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
