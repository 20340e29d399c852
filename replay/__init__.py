"""The replay room: recompute a recorded run's log-probabilities with an exact engine, and prove the engine exact.

`Generator`, `Sampling` and `exact_generator` draw responses with the exact engine on a GPU. They are looked up on first
use, so that importing this package needs neither torch nor triton.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timscope.replay.fast.generate import Generator
    from timscope.replay.fast.sampling import Completion, Sampling
    from timscope.replay.rollout_func import exact_generator, exact_rollout

__all__ = ["Completion", "Generator", "Sampling", "exact_generator", "exact_rollout"]

_HOMES = {
    "Generator": "timscope.replay.fast.generate",
    "Sampling": "timscope.replay.fast.sampling",
    "Completion": "timscope.replay.fast.sampling",
    "exact_generator": "timscope.replay.rollout_func",
    "exact_rollout": "timscope.replay.rollout_func",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
