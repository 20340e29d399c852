"""Watching one method of a framework: its arguments by name, before and after the call, whatever the signature."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from timscope.loggers.adapters.session import session
from timscope.loggers.patches import Patches

Arguments = Mapping[str, Any]


def watch(
    target: Any,
    name: str,
    *,
    before: Callable[[Arguments], object] | None = None,
    after: Callable[[Arguments, Any], object] | None = None,
    ended: Callable[[], object] | None = None,
) -> Callable[[], None]:
    """Wrap `target.name`, a class's or an object's method; returns a function that takes the wrap off again.

    `before(arguments)`; `after(arguments, result)`, not called where the method raised; `ended()`, called in any case.
    Arguments go by the method's own parameter names, `self` included where `target` is a class. The method's arguments,
    result and exceptions pass through untouched, and an error of ours stays here (see `Session.attempt`).
    """
    label = f"{getattr(target, '__name__', type(target).__name__)}.{name}"

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if before is not None:
                session().attempt(label, lambda: before(_named(original, args, kwargs)))
            try:
                result = original(*args, **kwargs)
            finally:
                if ended is not None:
                    session().attempt(label, ended)
            if after is not None:
                session().attempt(label, lambda: after(_named(original, args, kwargs), result))
            return result

        return watched

    patches = Patches()
    patches.wrap(target, name, make)
    return patches.restore


def _named(original: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
    bound = inspect.signature(original).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments
