"""What a pickle's names and objects stand for: things that only do what this package wrote for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Named:
    """What a class or function name in a pickle stands for.

    make(*args): what calling it gives, None where it may only be named. new(*args): what `cls.__new__` gives.
    """

    __slots__ = ("make", "name", "new")

    def __init__(self, name: str, make: Callable[..., Any] | None = None, new: Callable[..., Any] | None = None):
        self.name, self.make, self.new = name, make, new


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
