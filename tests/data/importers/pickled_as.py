"""Classes that pickle under another framework's module name, without that framework."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


@contextmanager
def pretending(home: str, **members: Any) -> Iterator[None]:
    """While the block runs, `home` is a module with `members`, and their `__module__` is `home`: pickle asks for it."""
    module = ModuleType(home)
    parts = home.split(".")
    added = [".".join(parts[: i + 1]) for i in range(len(parts)) if ".".join(parts[: i + 1]) not in sys.modules]
    for name in added:
        sys.modules[name] = module
    for name, member in members.items():
        member.__module__, member.__qualname__, member.__name__ = home, name, name
        setattr(module, name, member)
    try:
        yield
    finally:
        for name in added:
            del sys.modules[name]
