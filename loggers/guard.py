"""The error policy: whatever goes wrong in a hook stays in the hook.

An error is logged once, the column it hit is turned off for the rest of the run and the reason goes into the manifest.
`strict=True` raises instead, for tests and for people who would rather stop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

logger = logging.getLogger("timscope")
T = TypeVar("T")


class Guard:
    """Holds which columns are off and why. `report` is told each reason once."""

    def __init__(self, strict: bool = False, report: Callable[[str], None] | None = None) -> None:
        self.strict = strict
        self.off: dict[str, str] = {}
        self._report = report

    def on(self, column: str) -> bool:
        """Whether `column` is still recorded."""
        return column not in self.off

    @contextmanager
    def column(self, name: str) -> Iterator[None]:
        """Run a block that fills `name`; an Exception inside turns the column off and goes no further."""
        try:
            yield
        except Exception as error:
            if self.strict:
                raise
            self.turn_off(name, f"{type(error).__name__}: {error}")

    def option(self, name: str, value: T, fits: bool, default: T) -> T:
        """`value`, or `default` where it makes no sense: a slip in an option must not cost the run."""
        if fits:
            return value
        message = f"{name}={value!r} makes no sense, {default!r} is used"
        if self.strict:
            raise ValueError(message)
        self.turn_off(name, message)
        return default

    def turn_off(self, name: str, reason: str) -> None:
        """Stop recording `name`; says so once."""
        if name in self.off:
            return
        reason = " ".join(reason.split())  # one line, whatever the error's text is
        self.off[name] = reason
        message = f"column {name!r} is off: {reason}"
        logger.warning("timscope recorder: %s (training goes on)", message)
        if self._report is not None:
            self._report(message)
