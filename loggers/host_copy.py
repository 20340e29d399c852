"""A copy of a model's weights in host memory, for the writer's thread to work on while training goes on.

On CUDA the copies are enqueued, not waited for, into pinned buffers that are used again. They go on the current stream,
where the optimizer's kernels go too: a stream runs in order, so the next step cannot overwrite a weight before it is
copied, and no event in the training loop is needed. A stream of its own could overlap with the next forward, but then
something would have to hold the optimizer back, which is the trainer's business. The price is the copy's time on the
GPU: a model's bytes over the bus, 40 ms for 2 GB at 50 GB/s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from timscope.data.weights import RawTensor
from timscope.loggers.weights import arrival, dtype_of, flat_bytes


class HostCopy:
    """Buffers for one copy. Memory: the model's bytes; pinned blocks are rounded up to powers of two by torch."""

    def __init__(self) -> None:
        self._buffers: dict[str, Any] = {}
        self._layouts: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._events: list[Any] = []

    def prepare(self, tensors: Mapping[str, Any]) -> None:
        """Have buffers for these tensors; those that fit are kept. What was in them is lost."""
        import torch

        self._events = []
        self._layouts = {name: (dtype_of(t), tuple(t.shape)) for name, t in tensors.items()}
        kept, self._buffers = self._buffers, {}
        for name, tensor in tensors.items():
            size = tensor.numel() * tensor.element_size()
            buffer = kept.get(name)
            if buffer is None or buffer.numel() != size:
                buffer = torch.empty(size, dtype=torch.uint8, pin_memory=tensor.device.type == "cuda")
            self._buffers[name] = buffer

    def take(self, tensors: Mapping[str, Any]) -> None:
        """Copy these tensors; on CUDA only enqueued."""
        self.prepare(tensors)
        for name, tensor in tensors.items():
            self._buffers[name].copy_(flat_bytes(tensor), non_blocking=tensor.device.type == "cuda")
        devices = {tensor.device for tensor in tensors.values()}
        self._events = [arrival(device) for device in devices if device.type == "cuda"]

    def wait(self) -> dict[str, RawTensor]:
        """The tensors, over the buffers' memory, as soon as they have arrived. Only valid until the next `take`."""
        for event in self._events:
            event.synchronize()
        return {
            name: RawTensor(dtype, shape, memoryview(self._buffers[name].numpy()))
            for name, (dtype, shape) in self._layouts.items()
        }
