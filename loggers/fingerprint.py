"""The fingerprint of weights that lie on a GPU, made there: enqueued like any other kernel, waited for much later.

The definition is `timscope.data.digest.fingerprint`; integers add up in any order, so the same number comes out. Only
row hashes (16 bytes for 64 KiB of weights) go to the host. One Triton kernel makes them (fingerprint_kernel.py); where
there is no Triton, plain torch does (fingerprint_torch.py).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from timscope.data.digest import combine_rows, fingerprint, tensor_header
from timscope.loggers.fingerprint_kernel import Plan
from timscope.loggers.fingerprint_torch import Part, multipliers, row_hashes
from timscope.loggers.weights import arrival, dtype_of, weight_items, weight_tensors

logger = logging.getLogger("timscope")

Said = tuple[str, str, tuple[int, ...]]  # name, dtype, shape


class PendingFingerprint:
    """A fingerprint that may still be in the making. `result` waits for it: call it on the writer's thread."""

    def __init__(self, said: Sequence[Said], made: Sequence[tuple[list[Part], Any, Any]]) -> None:
        self._said, self._made = said, made
        self._value: str | None = None

    @classmethod
    def known(cls, value: str) -> PendingFingerprint:
        """One that is there already."""
        pending = cls((), ())
        pending._value = value
        return pending

    def result(self) -> str:
        """ "mix128:...". Blocks until the GPU is past it; the buffers are let go then."""
        if self._value is None:
            for _, _, event in self._made:
                event.synchronize()
            rows = [np.asarray(host.numpy()) for _, host, _ in self._made]
            parts = [part for of_device, _, _ in self._made for part in of_device]
            headers = [tensor_header(*said) for said in self._said]
            self._value = combine_rows(headers, parts, np.concatenate(rows))
            self._said, self._made = (), ()
        return self._value


class Fingerprinter:
    """Makes fingerprints of one model, version after version; what does not change between them is worked out once."""

    def __init__(self) -> None:
        self._plan: Plan | None = None
        self._said: list[Said] = []
        self._plain = False

    def later(self, model: Any) -> PendingFingerprint:
        """Start the fingerprint of the weights that `model` holds now; returns at once on CUDA.

        All of it is enqueued on the current stream, before whatever changes the weights next. On another device the
        weights are read here and now.
        """
        if self._plan is None or not self._plan.fits():
            self._plan = None
            tensors = weight_tensors(model)
            if not tensors or any(tensor.device.type != "cuda" for tensor in tensors.values()):
                return PendingFingerprint.known(fingerprint(weight_items(model)))
            self._said = [(name, dtype_of(t), tuple(t.shape)) for name, t in tensors.items()]
            try:
                if not self._plain:
                    self._plan = Plan(model, tensors)
                    return self._planned(self._plan)
            except Exception as error:
                self._plan, self._plain = None, True
                logger.info("timscope recorder: fingerprints by plain torch kernels, which are slower: %s", error)
            return PendingFingerprint(self._said, _by_torch(list(tensors.values())))
        return self._planned(self._plan)

    def _planned(self, plan: Plan) -> PendingFingerprint:
        return PendingFingerprint(self._said, [(plan.parts, *_to_host(plan.hashes(multipliers(str(plan.device)))))])


def fingerprint_later(model: Any) -> PendingFingerprint:
    """One fingerprint, as `Fingerprinter.later` starts it."""
    return Fingerprinter().later(model)


def _by_torch(tensors: Sequence[Any]) -> list[tuple[list[Part], Any, Any]]:
    made = []
    for device in sorted({tensor.device for tensor in tensors}, key=str):
        parts, hashes = row_hashes([(i, t) for i, t in enumerate(tensors) if t.device == device])
        made.append((parts, *_to_host(hashes)))
    return made


def _to_host(hashes: Any) -> tuple[Any, Any]:
    """A pinned copy that is on its way, and the event that says it has arrived."""
    import torch

    host = torch.empty(hashes.shape, dtype=hashes.dtype, pin_memory=True)
    host.copy_(hashes, non_blocking=True)
    return host, arrival(hashes.device)
