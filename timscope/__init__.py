"""timscope: flight recorder and crash laboratory for training-inference mismatch in LLM reinforcement learning.

This file is the public face only. Names are imported on first use, so that `import timscope` on a trainer node costs
milliseconds and never pulls torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from timscope.analysis.verdict import diagnose
    from timscope.data import BadInput, Run, open_run
    from timscope.loggers import Recorder, attach
    from timscope.replay.certify import certify
    from timscope.replay.replay_run import replay_run

# The room `timscope.replay` already owns the name "replay", so the verb is replay_run.
_HOMES = {
    "BadInput": "timscope.data",
    "Recorder": "timscope.loggers",
    "Run": "timscope.data",
    "attach": "timscope.loggers",
    "certify": "timscope.replay.certify",
    "diagnose": "timscope.analysis.verdict",
    "open_run": "timscope.data",
    "replay_run": "timscope.replay.replay_run",
}

__all__ = ["BadInput", "Recorder", "Run", "__version__", "attach", "certify", "diagnose", "open_run", "replay_run"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'timscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
