"""The pickle machine: a stack, marks and a memo, and what opcodes do to them. See `pickles.py` for why it exists."""

from __future__ import annotations

import struct
from typing import Any, NoReturn

from timscope.data.errors import BadInput
from timscope.data.importers.number_list import LIST_RUN, RUN, Numbers, decode
from timscope.data.importers.pickle_names import Buildable, Find, Named, Persistent, keys

_COPY_BELOW = 1024  # bytes; shorter byte strings are copied, so that they can be keys


class Machine:
    """State of one run: stack, marks, memo, and the place in the file."""

    def __init__(self, view: memoryview, place: str, find: Find, persistent: Persistent | None) -> None:
        self.view, self.place, self.find, self.persistent = view, place, find, persistent
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def refuse(self, what: str) -> NoReturn:
        """Say what the pickle wanted and stop."""
        raise BadInput(f"{self.place}: the pickle wants {what}; nothing was run. Check where this file comes from")

    def push(self, value: Any) -> None:
        """Onto the stack as it is now: unmarking replaces it."""
        self.stack.append(value)

    def take(self, size: int) -> memoryview:
        """The next `size` bytes."""
        end = self.at + size
        if size < 0 or end > len(self.view):
            raise ValueError(f"{size:,} bytes are announced where {len(self.view) - self.at:,} are left")
        piece = self.view[self.at : end]
        self.at = end
        return piece

    def number(self, form: str) -> int:
        """An integer argument in struct notation."""
        value: int = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        return value

    def text(self, size: int) -> str:
        """A string argument."""
        return str(self.take(size), "utf-8", "surrogatepass")

    def line(self) -> str:
        """A text argument up to the end of the line."""
        start = self.at
        for end in range(start, min(start + 1000, len(self.view))):
            if self.view[end] == 0x0A:
                self.at = end + 1
                return str(self.view[start:end], "utf-8")
        raise ValueError("a name without end")

    def bytes_(self, size: int) -> None:
        """Push a byte string: a view of the file where it is long."""
        piece = self.take(size)
        self.stack.append(bytes(piece) if size < _COPY_BELOW else piece)

    def unmark(self) -> list[Any]:
        """The items since the last MARK."""
        items, self.stack = self.stack, self.marks.pop()
        return items

    def mark(self) -> None:
        """MARK; a run of numbers after it goes into the list below at once."""
        match = RUN.match(self.view, self.at) if self.stack and isinstance(self.stack[-1], list | Numbers) else None
        if match is None:
            self.marks.append(self.stack)
            self.stack = []
            return
        run = decode(self.view[self.at : match.end() - 1])
        self.at = match.end()
        target = self.stack[-1]
        if isinstance(target, Numbers):
            target.extend_numbers(run)
        else:
            target.extend(run.tolist())

    def empty_list(self) -> None:
        """EMPTY_LIST, as an array where numbers follow."""
        self.stack.append(Numbers() if LIST_RUN.match(self.view, self.at) else [])

    def extend(self, items: list[Any]) -> None:
        """Items into the list (or list-like object) on top."""
        target = self.stack[-1]
        if isinstance(target, list | Numbers):
            target.extend(items)
        elif isinstance(target, Buildable):
            target.take_items(items)
        else:
            raise TypeError("items for something that is no list")

    def update(self, items: list[Any]) -> None:
        """Keys and values into the dict on top."""
        target = self.stack[-1]
        if isinstance(target, dict):
            target.update(zip(keys(items[::2]), items[1::2], strict=True))
        elif isinstance(target, Buildable):
            target.take_items(items)
        else:
            raise TypeError("keys for something that is no dict")

    def add(self, items: list[Any]) -> None:
        """Items into the set on top."""
        if not isinstance(self.stack[-1], set):
            raise TypeError("items for something that is no set")
        self.stack[-1].update(keys(items))

    def tuple_(self, size: int) -> None:
        """The last `size` items as a tuple."""
        if len(self.stack) < size:
            raise IndexError("too few items for a tuple")
        items = tuple(self.stack[-size:])
        self.stack[-size:] = [items]

    def push_name(self, module: str, name: str) -> None:
        """A class or function name."""
        self.stack.append(self.find(module, name))

    def stack_name(self) -> None:
        """STACK_GLOBAL: the name is on the stack."""
        name, module = self.stack.pop(), self.stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise TypeError("a name that is no text")
        self.push_name(module, name)

    def call(self, new: bool = False, keywords: bool = False) -> None:
        """REDUCE, NEWOBJ and NEWOBJ_EX: only what `find` gave can be called."""
        named = self.stack.pop() if keywords else {}
        args, what = self.stack.pop(), self.stack.pop()
        if not isinstance(what, Named) or not isinstance(args, tuple):
            self.refuse("to call something that is not a name")
        maker = what.new if new else what.make
        if maker is None:
            self.refuse(f"to call {what.name}, which is only data's name")
        self.stack.append(maker(*args, **named) if named else maker(*args))

    def build(self) -> None:
        """BUILD: a state for the object below."""
        state = self.stack.pop()
        if not isinstance(self.stack[-1], Buildable):
            self.refuse(f"to set attributes of {type(self.stack[-1]).__name__}")
        self.stack[-1].build(state)

    def persistent_id(self) -> None:
        """BINPERSID."""
        if self.persistent is None:
            self.refuse("a persistent id, which only torch's files have")
        self.stack.append(self.persistent(self.stack.pop()))
