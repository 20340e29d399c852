"""Stands for packages that need a GPU to install and that a framework's driver imports without using them here."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock


class _Stubs:
    """A finder of last resort: an empty module, any attribute of which can be had, for each of some names."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: Any) -> ModuleType:
        stub = ModuleType(spec.name)
        stub.__getattr__ = lambda name: MagicMock()  # type: ignore[method-assign]
        return stub

    def exec_module(self, module: ModuleType) -> None:
        pass


@contextmanager
def stubbed(*names: str) -> Iterator[None]:
    """Let these packages be imported for the block; no stub is left behind for others to find."""
    finder, before = _Stubs(names), set(sys.modules)
    sys.meta_path.append(finder)  # type: ignore[arg-type]
    try:
        yield
    finally:
        sys.meta_path.remove(finder)  # type: ignore[arg-type]
        for name in [n for n in sys.modules if n not in before and n.split(".")[0] in names]:
            del sys.modules[name]
