"""The exact engine: a transformers model whose forward gives a token the same bits in every batch.

Installed on one model instance and taken off again: each module of a known class gets an instance-level forward, and
the model's own config names the tile attention. No class and no other model is touched. Inside the context everything
that transformers can do with the model (a packed forward, a padded batch, a KV cache, autograd) goes through the same
tiles.

Parts can be left out. A model with a part missing is no longer exact, which is what negative controls and one-op
swaps need.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import TracebackType
from typing import Any

from torch import Tensor, nn

from timscope.replay.exact import attention, support
from timscope.replay.exact.linear import LinearPlan
from timscope.replay.exact.norm import rms_norm, rotary_tables
from timscope.replay.exact.tiles import tiled

ENGINE_VERSION = "exact-tiles-1"
PARTS = ("linear", "attention", "norm", "rotary", "activation")

_ABSENT = object()


def _linear_forward(module: Any, plan: LinearPlan) -> Callable[[Tensor], Tensor]:
    return lambda x: plan.linear(x, module.weight, module.bias)


def _norm_forward(module: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: rms_norm(x, module.weight, module.variance_epsilon)


def _rotary_forward(module: Any) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    return lambda x, position_ids: rotary_tables(module.inv_freq, position_ids, module.attention_scaling, x.dtype)


def _activation_forward(module: nn.Module) -> Callable[[Tensor], Tensor]:
    plain = module.forward
    return lambda x: tiled(plain, x)


class ExactEngine:
    """Context manager around a model: `with ExactEngine(model): ...` computes exactly, then restores the model.

    Raises BadInput for a model it does not know. `parts` says what to install (all of PARTS by default);
    `allow_wide=False` keeps every matrix product at 16 rows, which is slower and gives the same bits.
    """

    def __init__(self, model: nn.Module, parts: Collection[str] = PARTS, allow_wide: bool = True) -> None:
        support.check_model(model)
        if unknown := set(parts) - set(PARTS):
            raise ValueError(f"unknown parts {sorted(unknown)}; known: {PARTS}")
        self.model: Any = model
        self.parts = frozenset(parts)
        self.plan = LinearPlan(allow_wide)
        self._saved: list[tuple[nn.Module, Any]] = []
        self._attention: str | None = None

    def _replacement(self, module: nn.Module, is_activation: bool) -> Callable[..., Any] | None:
        kind = type(module).__name__
        if isinstance(module, nn.Linear) and "linear" in self.parts:
            return _linear_forward(module, self.plan)
        if kind in support.NORMS and "norm" in self.parts:
            return _norm_forward(module)
        if kind in support.ROTARIES and "rotary" in self.parts:
            return _rotary_forward(module)
        if is_activation and "activation" in self.parts:
            return _activation_forward(module)
        return None

    def __enter__(self) -> ExactEngine:
        if self._saved:
            raise RuntimeError("this engine is already installed")
        for name, module in self.model.named_modules():
            forward = self._replacement(module, name.endswith("mlp.act_fn"))
            if forward is not None:
                self._saved.append((module, module.__dict__.get("forward", _ABSENT)))
                module.forward = forward
        if "attention" in self.parts:
            attention.register()
            self._attention = self.model.config._attn_implementation
            self.model.config._attn_implementation = attention.NAME
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for module, before in self._saved:
            del module.forward
            if before is not _ABSENT:
                module.forward = before
        self._saved.clear()
        if self._attention is not None:
            self.model.config._attn_implementation = self._attention
            self._attention = None
