"""Instance-level wraps that can be taken off again: the framework's classes and source stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_ABSENT = object()


class Patches:
    """Replaces methods on single objects and remembers how to restore them."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any, Any]] = []

    def wrap(self, target: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Set `target.name` to `make(original bound method)`. AttributeError where `target` has no such method."""
        before = vars(target).get(name, _ABSENT)
        wrapper = make(getattr(target, name))
        setattr(target, name, wrapper)
        self._done.append((target, name, before, wrapper))

    def restore(self) -> None:
        """Undo every wrap, last first. One that somebody wrapped over since stays in place."""
        for target, name, before, wrapper in reversed(self._done):
            if vars(target).get(name) is not wrapper:
                continue
            if before is _ABSENT:
                delattr(target, name)
            else:
                setattr(target, name, before)
        self._done.clear()
