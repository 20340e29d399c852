"""Reading pickles without running them: only opcodes of data, only names that an allow-list knows.

Python's own unpickler calls whatever a file names. Here a name becomes a `Named`, made by the caller's `find`, and only
its `make` is ever called. Two more things follow from an own machine: runs of numbers in lists become arrays (a dump of
token lists needs no more memory than its file), and long byte strings stay views of the file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from timscope.data.errors import BadInput
from timscope.data.importers.pickle_machine import Machine
from timscope.data.importers.pickle_names import Buildable, Find, Named, Persistent, keys

__all__ = ["Buildable", "Damaged", "Find", "Named", "Persistent", "read_pickle"]

# Opcodes outside of runs of numbers, at about 64 bytes of memory each. Dumps of plain data need far fewer.
MAX_OPCODES = 50_000_000


class Damaged(BadInput):
    """A file that is cut short or is not what its name says. One such file need not end an import."""


def read_pickle(view: memoryview, place: str, find: Find, persistent: Persistent | None = None) -> Any:
    """The object that a pickle describes (protocols 2 to 5).

    `find(module, name)` gives what a name stands for or raises BadInput; `persistent` resolves persistent ids (torch's
    storages). Raises `Damaged` where the pickle ends early or makes no sense, BadInput where it wants more than data.
    """
    machine = Machine(view, place, find, persistent)
    try:
        return _run(machine)
    except BadInput:
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, struct.error) as error:
        raise Damaged(f"{place} is cut short or damaged at byte {machine.at:,} ({error}): copy it again") from error


def _run(machine: Machine) -> Any:
    view, size = machine.view, len(machine.view)
    for _ in range(MAX_OPCODES):
        if machine.at >= size:
            raise ValueError("no end")
        code = view[machine.at]
        machine.at += 1
        if code == 0x2E:  # STOP
            return machine.stack.pop()
        handle = _HANDLERS.get(code)
        if handle is None:
            machine.refuse(f"the opcode {chr(code)!r}, which data does not need")
        handle(machine)
    raise BadInput(f"{machine.place} holds more than {MAX_OPCODES:,} objects: split the dump into smaller files")


def _handlers() -> dict[int, Callable[[Machine], object]]:
    def push(value: Any) -> Callable[[Machine], object]:
        return lambda m: m.stack.append(value)

    table: dict[str, Callable[[Machine], object]] = {
        "\x80": lambda m: None if m.number("<B") <= 5 else m.refuse("a protocol after 5"),
        "\x95": lambda m: m.take(8),  # FRAME
        "N": push(None), "\x88": push(True), "\x89": push(False), ")": push(()),
        "K": lambda m: m.stack.append(m.number("<B")),
        "M": lambda m: m.stack.append(m.number("<H")),
        "J": lambda m: m.stack.append(m.number("<i")),
        "\x8a": lambda m: m.stack.append(int.from_bytes(m.take(m.number("<B")), "little", signed=True)),
        "\x8b": lambda m: m.stack.append(int.from_bytes(m.take(m.number("<i")), "little", signed=True)),
        "G": lambda m: m.stack.append(struct.unpack(">d", m.take(8))[0]),
        "X": lambda m: m.stack.append(m.text(m.number("<I"))),
        "\x8c": lambda m: m.stack.append(m.text(m.number("<B"))),
        "\x8d": lambda m: m.stack.append(m.text(m.number("<Q"))),
        "B": lambda m: m.bytes_(m.number("<I")),
        "C": lambda m: m.bytes_(m.number("<B")),
        "\x8e": lambda m: m.bytes_(m.number("<Q")),
        "\x96": lambda m: m.bytes_(m.number("<Q")),  # BYTEARRAY8: never written to here
        "(": Machine.mark, "]": Machine.empty_list,
        "}": lambda m: m.stack.append({}), "\x8f": lambda m: m.stack.append(set()),
        "a": lambda m: m.extend([m.stack.pop()]), "e": lambda m: m.extend(m.unmark()),
        "l": lambda m: m.push(m.unmark()),
        "t": lambda m: m.push(tuple(m.unmark())),
        "\x85": lambda m: m.tuple_(1), "\x86": lambda m: m.tuple_(2), "\x87": lambda m: m.tuple_(3),
        "s": lambda m: m.update([m.stack.pop(-2), m.stack.pop()]), "u": lambda m: m.update(m.unmark()),
        "\x90": lambda m: m.add(m.unmark()), "\x91": lambda m: m.push(frozenset(keys(m.unmark()))),
        "0": lambda m: m.stack.pop(), "1": lambda m: m.unmark(),
        "2": lambda m: m.stack.append(m.stack[-1]),
        "q": lambda m: m.memo.__setitem__(m.number("<B"), m.stack[-1]),
        "r": lambda m: m.memo.__setitem__(m.number("<I"), m.stack[-1]),
        "\x94": lambda m: m.memo.__setitem__(len(m.memo), m.stack[-1]),
        "h": lambda m: m.stack.append(m.memo[m.number("<B")]),
        "j": lambda m: m.stack.append(m.memo[m.number("<I")]),
        "c": lambda m: m.push_name(m.line(), m.line()), "\x93": Machine.stack_name,
        "R": Machine.call, "\x81": lambda m: m.call(new=True), "\x92": lambda m: m.call(new=True, keywords=True),
        "b": Machine.build, "Q": Machine.persistent_id,
    }  # fmt: skip
    return {ord(code): handle for code, handle in table.items()}


_HANDLERS = _handlers()
