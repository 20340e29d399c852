"""What a writer lost and what went wrong: logged once, kept in the rank's state file, raised where it is strict."""

from __future__ import annotations

import logging
import time

from timscope.data.rank_state import RankState
from timscope.data.storage import Storage

logger = logging.getLogger("timscope")

_SAVE_EVERY_S = 5.0


class Ledger:
    """The running account behind a `RankState`. `save` belongs to the writer's thread, the rest to any."""

    def __init__(self, storage: Storage, state: RankState, strict: bool) -> None:
        self.state = state
        self._storage, self._strict = storage, strict
        self._raise: BaseException | None = None
        self._dropped: dict[int, tuple[int, int]] = {}  # step -> parts, tokens
        self._logged = self._changed = False
        self._saved = time.monotonic()

    def report(self, message: str, *, log: bool = True) -> None:
        """Keep an error. The first is logged, unless the caller has done so."""
        if not self.state.add(message):
            return
        self._changed = True
        if log and not self._logged:
            self._logged = True
            logger.error("timscope recorder: %s (training goes on; further errors are kept with the run)", message)

    def fail(self, error: BaseException, message: str) -> None:
        """Keep an error that `check` raises next where errors are to be raised."""
        self.report(message)
        if self._strict and self._raise is None:
            self._raise = error

    def check(self) -> None:
        """Raise what `fail` was told, once."""
        if self._raise is not None:
            error, self._raise = self._raise, None
            raise error

    def drop(self, step: int | None, tokens: int) -> None:
        """Count one part that was lost."""
        self.state.drops += 1
        self.state.dropped_tokens += tokens
        self._changed = True
        if step is not None:
            parts, before = self._dropped.get(step, (0, 0))
            self._dropped[step] = (parts + 1, before + tokens)

    def lost(self, step: int) -> tuple[int, int]:
        """Parts and tokens lost of a step; forgotten with the answer."""
        return self._dropped.pop(step, (0, 0))

    def save(self, *, closed: bool = False) -> None:
        """Write the state file."""
        self._changed, self._saved = False, time.monotonic()
        self.state.closed = closed
        self.state.save(self._storage)

    def save_if_due(self) -> None:
        """Write it where something changed and the last time is a while ago."""
        if self._changed and time.monotonic() - self._saved > _SAVE_EVERY_S:
            self.save()
