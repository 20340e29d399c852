"""Gradient statistics and sketches by parameter group, from the gradients as backward left them, before any clipping.

Gradients are packed into rows (`packing`) and a few kernels give what is wanted of every row; rows are added up to
groups in float64 on the host, by whoever asks for the result. On CUDA nothing here waits for the device: figures travel
to pinned memory while training goes on. Nothing is written to a gradient and no random number is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from timscope.loggers.packing import Layout, lay_out
from timscope.loggers.parameter_names import group_of, plain_name
from timscope.loggers.sketch import SketchPlan, rounded

# Rows of 32.5 kB: 33 MB on a device, so that a chunk stays in its cache between kernels; 4 MB on a CPU.
_CHUNK_ROWS, _CPU_CHUNK_ROWS = 1024, 128


@dataclass(frozen=True)
class _Part:
    """One device's figures, on their way to the host. `rows` [5, rows]: norm, max, min, non-zeros, non-finite."""

    layout: Layout
    rows: Any
    sketch: Any  # [groups, buckets] or None
    event: Any

    def totals(self) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64] | None]]:
        """By group: (sum of squares, largest, zeros, non-finite) and its sketch."""
        if self.event is not None:
            self.event.synchronize()
        norm, high, low, nonzero, bad = self.rows.numpy().astype(np.float64)
        starts = self.layout.group_rows
        zeros = np.array(self.layout.group_sizes) - np.add.reduceat(nonzero, starts)
        figures = (np.add.reduceat(norm**2, starts), np.maximum.reduceat(np.maximum(high, -low), starts), zeros)
        table = np.stack([*figures, np.add.reduceat(bad, starts)], axis=1)
        sketches = [None] * len(table) if self.sketch is None else self.sketch.numpy().astype(np.float64)
        return dict(zip(self.layout.groups, zip(table, sketches, strict=True), strict=True))


class Gradients:
    """What `gradient_groups` measured. `result` may be called on any thread, any number of times."""

    def __init__(self, parts: Sequence[_Part], scale: float) -> None:
        self._parts, self._scale = parts, scale

    def result(self) -> dict[str, dict[str, Any]]:
        """Wait for the device; `{group: {norm, max_abs, zero_share, nonfinite[, sketch]}}` and `total`, or {}."""
        sizes: dict[str, int] = {}
        figures: dict[str, NDArray[np.float64]] = {}
        sketches: dict[str, NDArray[np.float64] | None] = {}
        for part in self._parts:
            for (group, (row, sketch)), size in zip(part.totals().items(), part.layout.group_sizes, strict=True):
                for name in (group, "total"):
                    known = figures.get(name)
                    figures[name] = row if known is None else _merged(known, row)
                    before = sketches.get(name)
                    sketches[name] = sketch if before is None or sketch is None else before + sketch
                    sizes[name] = sizes.get(name, 0) + size
        total = {"total": figures.pop("total")} if figures else {}
        return {name: self._row(row, sketches[name], sizes[name]) for name, row in {**figures, **total}.items()}

    def _row(self, row: NDArray[np.float64], sketch: NDArray[np.float64] | None, size: int) -> dict[str, Any]:
        said: dict[str, Any] = {
            "norm": math.sqrt(row[0]) / self._scale,
            "max_abs": float(row[1]) / self._scale,
            "zero_share": float(row[2]) / size,
            "nonfinite": int(row[3]),
        }
        if sketch is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                stored = rounded((sketch / self._scale).astype(np.float32))
            said["sketch"] = stored if np.isfinite(stored).all() else None
        return said


def gradient_groups(
    named: Iterable[tuple[str, Any]], scale: float = 1.0, sketch: SketchPlan | None = None
) -> Gradients:
    """Measure the gradients of (name, parameter) pairs, in any order; parameters without a gradient do not count.

    `scale`: the loss scale of mixed fp16 training; norms and sketches are divided by it. In the result, by group and
    over all (`total`):
    norm: L2, float32 over rows of 8128 elements and float64 over rows. Infinite where a row's squares pass 3e38.
    max_abs: largest absolute value, NaN where there is one. zero_share: share of exact zeros. nonfinite: inf and NaN.
    sketch: [buckets] float32 of 8 significant bits, `total` the sum over groups; None where it is not finite, so
    wherever the gradient is not.
    """
    import torch

    devices: dict[Any, list[tuple[str, Any]]] = {}
    for name, parameter in named:
        gradient = parameter.grad
        if gradient is not None and gradient.numel():
            devices.setdefault(gradient.device, []).append((name, gradient))
    with torch.no_grad():
        return Gradients([_measure(device, pairs, sketch) for device, pairs in devices.items()], scale)


def _measure(device: Any, pairs: list[tuple[str, Any]], plan: SketchPlan | None) -> _Part:
    import torch

    chunk_rows = _CPU_CHUNK_ROWS if device.type == "cpu" else _CHUNK_ROWS
    layout = _layout(tuple(name for name, _ in pairs), tuple(g.numel() for _, g in pairs), chunk_rows)
    flats = [pairs[i][1].reshape(-1) for i in layout.order]
    scratch = torch.empty(layout.scratch, dtype=torch.float32, device=device)
    rows = torch.zeros(5, layout.rows, dtype=torch.float32, device=device)
    norm = torch.linalg.vector_norm
    sketch = bags = None
    if plan is not None:
        sketch = torch.zeros(len(layout.groups), plan.buckets, dtype=torch.float32, device=device)
        bags, columns = plan.bags(layout, device), plan.columns(device)
    for number, chunk in enumerate(layout.chunks):
        matrix = chunk.fill(flats, scratch)
        out = rows[:, chunk.first_row : chunk.first_row + chunk.rows]
        norm(matrix, 2, dim=1, out=out[0])
        torch.amax(matrix, 1, out=out[1])  # with amin 15 times faster on a CPU than the infinity norm
        torch.amin(matrix, 1, out=out[2])
        norm(matrix, 0, dim=1, out=out[3])
        if bags is not None:
            bags[number].add(matrix.mul_(columns), sketch)
        if device.type != "cpu" or not out[0].isfinite().all():  # a finite norm proves it, but asking would synchronise
            norm(matrix.mul_(0.0), 0, dim=1, out=out[4])  # 0 * inf and 0 * NaN are NaN, which is not zero
    return _Part(layout, _to_host(rows), None if sketch is None else _to_host(sketch), _event(device))


def _merged(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array([a[0] + b[0], np.maximum(a[1], b[1]), a[2] + b[2], a[3] + b[3]])


@lru_cache(maxsize=16)
def _layout(names: tuple[str, ...], sizes: tuple[int, ...], chunk_rows: int) -> Layout:
    plain = [plain_name(name) for name in names]
    return lay_out(plain, [group_of(name) for name in plain], sizes, chunk_rows)


def _to_host(tensor: Any) -> Any:
    """The tensor on the host; on CUDA the copy is only queued."""
    import torch

    if tensor.device.type != "cuda":
        return tensor.cpu()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def _event(device: Any) -> Any:
    """An event that comes after everything queued on the device's current stream; None where nothing is queued."""
    import torch

    if device.type != "cuda":
        return None
    event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event
