"""Changes to a model that can all be taken back: forwards, parameters and attributes of single objects, never a class.

What was there before is kept as the same object and put back in reverse order, so a model that was changed and restored
computes the same bits and holds the same memory.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

_ABSENT = object()


class Patches:
    """Context manager that undoes, at its end, every change made through it."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def forward(self, module: nn.Module, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Give one module the forward that `make` builds from its present one."""
        self.attribute(module, "forward", make(module.forward))

    def attribute(self, target: Any, name: str, value: Any) -> None:
        """Set an attribute of one object; one that only its class has is hidden, and seen again afterwards."""
        before = vars(target).get(name, _ABSENT)

        def undo() -> None:
            if before is _ABSENT:
                delattr(target, name)
            else:
                setattr(target, name, before)

        self._undo.append(undo)
        setattr(target, name, value)

    def setting(self, target: Any, name: str, value: Any) -> None:
        """Set an attribute through its own setter (a property of a config) and set the old value back."""
        before = getattr(target, name)
        self._undo.append(lambda: setattr(target, name, before))
        setattr(target, name, value)

    def parameter(self, module: nn.Module, name: str, value: Tensor) -> None:
        """Put another tensor in a parameter's place; the parameter itself is not written to."""
        before = module._parameters[name]
        self._undo.append(lambda: module._parameters.__setitem__(name, before))
        module._parameters[name] = nn.Parameter(value, requires_grad=False)

    def hook(self, handle: Any) -> None:
        """Remove a torch hook at the end."""
        self._undo.append(handle.remove)

    def undo(self) -> None:
        """Take everything back, the last change first."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Patches:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


def cast_parameters(model: nn.Module, dtype: torch.dtype, patches: Patches) -> None:
    """Every parameter in `dtype`; buffers stay: rotary frequencies lose most of their digits in bfloat16.

    A weight that two modules share is cast once.
    """
    done: dict[int, Tensor] = {}
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and parameter.is_floating_point() and parameter.dtype != dtype:
                cast = done.setdefault(id(parameter), parameter.detach().to(dtype))
                patches.parameter(module, name, cast)
