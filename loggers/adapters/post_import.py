"""Run code right after a module has been imported, without importing it ourselves.

A plugin is loaded while its framework is still being imported; reaching for the trainer there would import half of the
framework too early and in every worker. So a finder is put in front of `sys.meta_path` that only looks out for the
watched names, leaves the finding to the others, and runs the action when the module's own code has finished.
"""

from __future__ import annotations

import importlib.machinery
import logging
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

logger = logging.getLogger("timscope")

Action = Callable[[ModuleType], None]


class _Watch:
    """A meta-path finder that finds nothing itself."""

    def __init__(self) -> None:
        self.actions: dict[str, list[Action]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec that the other finders give, with the actions hung onto its loader."""
        if name not in self.actions:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: importlib.machinery.ModuleSpec | None = find(name, path, target)
            if spec is not None:
                self._hang(spec.loader, name)
                return spec
        return None

    def _hang(self, loader: Any, name: str) -> None:
        """Have this one module's `exec_module` call the actions; the loader is as before afterwards."""

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            loader.exec_module(module)
            for action in self.actions.pop(name, []):
                run(action, module)

        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader with slots, or none at all
            logger.warning("timscope: cannot hook into %s, loaded by %r", name, loader)


def run(action: Action, module: ModuleType) -> None:
    """Run `action(module)`; an error is logged and goes no further."""
    try:
        action(module)
    except Exception as error:
        logger.warning("timscope: %s is not hooked: %s: %s", module.__name__, type(error).__name__, error)


_watch = _Watch()


def when_imported(name: str, action: Action) -> None:
    """Call `action(module)` once module `name` has been imported: at once if it already is."""
    module = sys.modules.get(name)
    # A module in the middle of its own import is in sys.modules already; nothing here watches one of those.
    if module is not None:
        run(action, module)
        return
    _watch.actions.setdefault(name, []).append(action)
    if _watch not in sys.meta_path:
        sys.meta_path.insert(0, _watch)
