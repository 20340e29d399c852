"""Values taken from a trainer at one moment without waiting for the device, to be looked at later on another thread.

A CUDA tensor is copied into pinned host memory in the order of its stream, so whatever the trainer does to it later
comes after the copy; `result()` waits for the copy alone, asleep and without the GIL. Pinned buffers come from torch's
caching host allocator, which hands them out again once they are let go. On the CPU the copy is made at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from timscope.loggers.arrays import Array, is_tensor, to_numpy


class Snapshot:
    """Copies of tensors by name (None is left out). Nothing is synchronised until `result()`."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        import torch

        self._copies: dict[str, Any] = {}
        self._events: list[Any] = []
        devices = set()
        with torch.no_grad():
            for name, tensor in tensors.items():
                if tensor is None:
                    continue
                tensor = tensor.detach()
                if tensor.is_cuda:
                    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                    copy.copy_(tensor, non_blocking=True)
                    devices.add(tensor.device)
                else:
                    copy = tensor.clone()
                self._copies[name] = copy
        for device in devices:
            event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(device))
            self._events.append(event)
        self._arrays: dict[str, Array] | None = None

    def result(self) -> dict[str, Array]:
        """The copies as numpy arrays, bfloat16 and half widened to float32. Waits for the device the first time."""
        if self._arrays is None:
            for event in self._events:
                event.synchronize()
            self._arrays = {name: to_numpy(copy) for name, copy in self._copies.items()}
            self._copies, self._events = {}, []
        return self._arrays


class Held:
    """One tensor of a `Snapshot`."""

    def __init__(self, tensor: Any) -> None:
        self._snapshot = Snapshot({"": tensor})

    def result(self) -> Array:
        """The tensor as a numpy array."""
        return self._snapshot.result()[""]


class HeldRows:
    """A list of what was held, some of it on its way."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def result(self) -> list[Any]:
        """The rows on the host."""
        return [resolve(row) for row in self._rows]


def hold(values: Any) -> Any:
    """`values` (a tensor, an array, a list, a list of those, a scalar) as they are now; hand the result to `resolve`.

    Tensors elsewhere than in host memory become `Held`; everything else is copied at once. A list is of one kind: its
    first entry that is not None tells which, because looking at every number would cost more than copying them.
    """
    if is_tensor(values):
        return to_numpy(values.detach().clone()) if values.device.type == "cpu" else Held(values)
    if isinstance(values, np.ndarray):
        return values.copy()
    if isinstance(values, (list, tuple)):
        first = next((v for v in values if v is not None), None)
        if not (isinstance(first, (list, tuple, np.ndarray)) or is_tensor(first)):
            return list(values)
        rows = [hold(v) for v in values]
        return HeldRows(rows) if any(map(pending, rows)) else rows
    return values


def pending(held: Any) -> bool:
    """Whether `resolve` would have to wait for a device."""
    return isinstance(held, (Held, HeldRows))


def resolve(held: Any) -> Any:
    """What was held, on the host."""
    return held.result() if isinstance(held, (Held, HeldRows)) else held
