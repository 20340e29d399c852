"""The two implementations of the exact engine behind one seam: which one serves a model here, and under which name.

`tiles` (replay/exact) runs everywhere. `fast` (replay/fast) needs CUDA, triton and a dense Llama, Qwen2 or Qwen3; both
define a token's bits by its own sequence alone, but they are not the same bits. So each stamps its version on manifests
and certificates, and a replay or certificate of one counts nothing for the other.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol

import torch

from timscope.data import BadInput
from timscope.replay.exact import ENGINE_VERSION, ExactEngine
from timscope.replay.scoring import Progress, Scores, score

IMPLEMENTATIONS = ("auto", "fast", "tiles")
FAST_VERSION = "exact-fast-1"
# Head sizes whose tiles fit the shared memory of one multiprocessor, by dtype.
HEAD_SIZES = {torch.bfloat16: (64, 128), torch.float32: (64,)}


class ScoringEngine(Protocol):
    """An engine around one loaded model, used as a context manager; outside it the model is as it was."""

    name: str
    version: str

    def __enter__(self) -> ScoringEngine: ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def score(
        self,
        prompts: Sequence[Sequence[int]],
        completions: Sequence[Sequence[int]],
        temperature: float = 1.0,
        progress: Progress | None = None,
    ) -> list[Scores]:
        """Log-probability and entropy of each response token, sequence by sequence, in the order given."""
        ...


Maker = Callable[[Any], ScoringEngine]


class TileEngine:
    """The reference: transformers' own modules with every reduction in fixed tiles (replay/exact)."""

    name, version = "tiles", ENGINE_VERSION

    def __init__(self, model: Any) -> None:
        self.model, self._tiles = model, ExactEngine(model)

    def __enter__(self) -> TileEngine:
        self._tiles.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tiles.__exit__(kind, value, trace)

    def score(
        self,
        prompts: Sequence[Sequence[int]],
        completions: Sequence[Sequence[int]],
        temperature: float = 1.0,
        progress: Progress | None = None,
    ) -> list[Scores]:
        """See ScoringEngine."""
        return score(self.model, prompts, completions, temperature, progress)


def has_triton() -> bool:
    """Whether triton can be imported, without importing it."""
    return importlib.util.find_spec("triton") is not None


def interpreted() -> bool:
    """Whether triton's kernels run in its interpreter, which needs no GPU: for tests, thousands of times slower."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def fast_refusal(config: Any, dtype: torch.dtype, device: str | torch.device) -> str | None:
    """Why the fast engine cannot serve such a model here; None where it can."""
    if torch.device(device).type != "cuda" and not interpreted():
        return "it needs a CUDA device"
    if not has_triton():
        return "triton is not installed"
    if dtype not in HEAD_SIZES:
        return f"it computes in bfloat16 or float32, not {dtype}"
    if config.hidden_act != "silu":
        return f"it knows the activation silu, not {config.hidden_act}"
    if getattr(config, "mlp_bias", False):
        return "it knows no MLP biases"
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if size not in HEAD_SIZES[dtype]:
        return f"its head sizes in {str(dtype)[6:]} are {HEAD_SIZES[dtype]}, not {size}"
    return None


def choose(config: Any, dtype: torch.dtype, device: str | torch.device, implementation: str = "auto") -> Maker:
    """The implementation that serves a model of this config: fast where it can on a GPU, tiles elsewhere.

    BadInput where the implementation asked for by name cannot serve it.
    """
    if implementation not in IMPLEMENTATIONS:
        raise BadInput(f"there is no implementation {implementation!r}: choose {', '.join(IMPLEMENTATIONS)}")
    if implementation == "tiles":
        return TileEngine
    refusal = fast_refusal(config, dtype, device)
    if implementation == "fast" and refusal:
        raise BadInput(f"the fast engine cannot serve this model ({refusal}): take --implementation tiles")
    if refusal or (implementation == "auto" and torch.device(device).type != "cuda"):
        return TileEngine
    from timscope.replay.fast_engine import FastEngine

    return FastEngine


def version_of(maker: Maker) -> str:
    """The version that this implementation stamps."""
    return str(maker.version)  # type: ignore[attr-defined]
