"""Loggers run inside the training process: a framework-free recorder and one thin hook a framework.

Nothing here imports torch or a framework at module level, and nothing here may change or stop the run that it watches.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from timscope.loggers.recorder import NullRecorder, Recorder

if TYPE_CHECKING:
    from timscope.loggers.trl import attach

__all__ = ["NullRecorder", "Recorder", "attach"]


def __getattr__(name: str) -> Any:
    if name == "attach":
        return import_module("timscope.loggers.trl").attach
    raise AttributeError(f"module 'timscope.loggers' has no attribute {name!r}")
