"""One Triton kernel that makes all row hashes of a model in a single launch, reading each weight once.

The plain torch code (fingerprint.py) gives the same numbers with hundreds of launches, and on a machine with slow
launches those cost more of the training thread than the GPU needs for the work. Which memory is read is worked out
once: an optimizer updates weights in place. Each call checks that every tensor is still the same object at the same
address, and plans anew where one is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from timscope.data.digest import LANES, ROW_BYTES, ROW_WORDS
from timscope.loggers.fingerprint_torch import Part
from timscope.loggers.weights import unwrapped

_ROWS_A_PROGRAM = 4  # the multipliers are loaded once for so many rows
_BLOCK = 512


class Plan:
    """Addresses of all rows of a model on one CUDA device. ValueError where its weights do not lie as they must."""

    def __init__(self, model: Any, tensors: Mapping[str, Any]) -> None:
        import torch

        self._places = [(*_owner(model, name), tensor.data_ptr()) for name, tensor in tensors.items()]
        self.device = next(iter(tensors.values())).device
        self.parts: list[Part] = []
        addresses: list[Any] = []
        sizes: list[Any] = []
        for number, tensor in enumerate(tensors.values()):
            size = tensor.numel() * tensor.element_size()
            if tensor.device != self.device or not tensor.is_contiguous() or tensor.data_ptr() % 4:
                raise ValueError("weights on several devices, not contiguous, or not aligned to 4 bytes")
            if size:
                starts = np.arange(0, size, ROW_BYTES)
                addresses.append(tensor.data_ptr() + starts)
                sizes.append(np.minimum(ROW_BYTES, size - starts))
                self.parts.append((number, 0, len(starts)))
        self.rows = sum(count for _, _, count in self.parts)
        pad = -self.rows % _ROWS_A_PROGRAM
        filler = np.zeros(pad, np.int64)  # rows of no bytes: nothing is read there
        self._table = torch.from_numpy(np.stack([np.concatenate([*a, filler]) for a in (addresses, sizes)]))
        self._table = self._table.to(self.device)
        self._kernel = _kernel()

    def fits(self) -> bool:
        """Whether the model's tensors are still the ones that were planned for."""
        for owner, key, held, address in self._places:
            now: Any = owner.get(key)
            if now is not held or now.data_ptr() != address:
                return False
        return True

    def hashes(self, multipliers: Any) -> Any:
        """Row hashes, int64 [rows, LANES] on the device, enqueued on its current stream."""
        import torch

        programs = self._table.shape[1] // _ROWS_A_PROGRAM
        with torch.cuda.device(self.device):
            out = torch.empty((programs * _ROWS_A_PROGRAM, LANES), dtype=torch.int64, device=self.device)
            if programs:
                self._kernel[(programs,)](
                    self._table[0], self._table[1], multipliers, out, ROW_WORDS, _ROWS_A_PROGRAM, _BLOCK
                )
        return out[: self.rows]


def _owner(model: Any, name: str) -> tuple[Mapping[str, Any], str, Any]:
    """(dict that holds the tensor, its key there, the tensor). ValueError where it is no parameter or buffer."""
    path, _, key = name.rpartition(".")
    try:
        module = unwrapped(model).get_submodule(path)
    except AttributeError as error:
        raise ValueError(f"{name} belongs to no module") from error
    for owner in (module._parameters, module._buffers):
        if owner.get(key) is not None:
            return owner, key, owner[key]
    raise ValueError(f"{name} is no parameter and no buffer")


@cache
def _kernel() -> Any:
    """The compiled kernel. ImportError where there is no Triton."""
    triton: Any = import_module("triton")
    tl: Any = import_module("triton.language")

    def row_hashes(  # type: ignore[no-untyped-def]
        addresses, sizes, multipliers, out, WORDS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
    ):
        rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        words = tl.load(addresses + rows).to(tl.pointer_type(tl.int32))
        size = tl.load(sizes + rows).to(tl.int32)
        first = tl.zeros((ROWS, BLOCK), tl.int64)
        second = tl.zeros((ROWS, BLOCK), tl.int64)
        for start in range(0, WORDS, BLOCK):
            place = start + tl.arange(0, BLOCK)
            left = size[:, None] - 4 * place[None, :]  # bytes of the row from this word on
            word = tl.load(words[:, None] + place[None, :], mask=left > 0, other=0)
            inside = (1 << (8 * tl.minimum(tl.maximum(left, 0), 3))) - 1
            word = tl.where(left >= 4, word, word & inside).to(tl.int64)
            first += word * tl.load(multipliers + place)[None, :]
            second += word * tl.load(multipliers + WORDS + place)[None, :]
        tl.store(out + 2 * rows, tl.sum(first, 1))
        tl.store(out + 2 * rows + 1, tl.sum(second, 1))

    return triton.jit(row_hashes)
