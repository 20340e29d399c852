"""What a pickle's names and objects stand for: things that only do what this package wrote for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class Named:
    """What a class or function name in a pickle stands for.

    make(*args): what calling it gives, None where it may only be named. new(*args): what `cls.__new__` gives.
    """

    __slots__ = ("make", "name", "new")

    def __init__(self, name: str, make: Callable[..., Any] | None = None, new: Callable[..., Any] | None = None):
        self.name, self.make, self.new = name, make, new


def keys(items: Iterable[Any], depth: int = 8) -> list[Any]:
    """The items, after checking that they can be hashed: a tuple nested a million times ends Python, not the import.

    TypeError where one is nested more than `depth` times.
    """
    found = list(items)
    for item in found:
        if isinstance(item, tuple | frozenset):
            if not depth:
                raise TypeError("a key nested too deeply")
            keys(item, depth - 1)
    return found


def mapping(value: Any) -> dict[Any, Any]:
    """A copy of a dict that the machine made; TypeError for anything else, whose keys nobody has looked at."""
    if not isinstance(value, dict):
        raise TypeError(f"{type(value).__name__} where a dict is expected")
    return dict(value)


class Buildable:
    """An object that takes a state after it was made (the BUILD opcode)."""

    def build(self, state: Any) -> None:
        """Take the state."""
        raise NotImplementedError

    def take_items(self, items: list[Any]) -> None:
        """Take list or dict items, where the class is a list or dict underneath."""
        raise TypeError(f"{type(self).__name__} takes no items")


Find = Callable[[str, str], Named]
Persistent = Callable[[Any], Any]
