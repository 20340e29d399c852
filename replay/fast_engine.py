"""The fast engine as a scoring engine: packs of whole sequences through FastModel, response positions to the head.

Importing this module imports triton; `engines.choose` does so only where the fast engine serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from timscope.data import BadInput
from timscope.replay.engines import FAST_VERSION
from timscope.replay.fast.forward import Batch, FastModel
from timscope.replay.fast.matmul import LARGEST, Plan
from timscope.replay.fast.weights import read_weights
from timscope.replay.scoring import Progress, Scores, checked, packs

TOKENS_PER_FORWARD = LARGEST  # beyond it the plan gives every product to the slower sequential kernel
LEAST_POSITIONS, MOST_POSITIONS = 32_768, 262_144


@cache
def _plan(device: str) -> Plan:
    """One plan a device and process: what it measures depends on shapes and dtypes, not on the weights' values."""
    return Plan()


def _positions(model: Any) -> int:
    wanted = getattr(model.config, "max_position_embeddings", LEAST_POSITIONS)
    return min(max(wanted, LEAST_POSITIONS), MOST_POSITIONS)


@torch.inference_mode()
def fast_model(model: Any) -> FastModel:
    """FastModel of a transformers model's weights as they stand. BadInput for a model it does not know."""
    return FastModel(read_weights(model, _positions(model)), _plan(str(model.device)))


class FastEngine:
    """FastModel of a transformers model's weights as they stand on entry. BadInput for a model it does not know."""

    name, version = "fast", FAST_VERSION

    def __init__(self, model: Any) -> None:
        self.model = model
        self.positions = _positions(model)
        self._fast: FastModel | None = None
        self._flags = (False, False)

    @property
    def fast(self) -> FastModel:
        """The model, inside the context."""
        if self._fast is None:
            raise RuntimeError("the fast engine is used outside its context")
        return self._fast

    def __enter__(self) -> FastEngine:
        products = torch.backends.cuda.matmul
        self._flags = products.allow_tf32, products.allow_bf16_reduced_precision_reduction
        products.allow_tf32 = products.allow_bf16_reduced_precision_reduction = False
        self._fast = fast_model(self.model)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._fast = None
        products = torch.backends.cuda.matmul
        products.allow_tf32, products.allow_bf16_reduced_precision_reduction = self._flags

    @torch.inference_mode()
    def score(
        self,
        prompts: Sequence[Sequence[int]],
        completions: Sequence[Sequence[int]],
        temperature: float = 1.0,
        progress: Progress | None = None,
        limit: int = TOKENS_PER_FORWARD,
    ) -> list[Scores]:
        """Packs of at most `limit` tokens, a longer sequence alone. The size of a pack changes no bit."""
        todo, results = checked(prompts, completions)
        lengths = [len(prompts[i]) + len(completions[i]) - 1 for i in todo]
        if max(lengths, default=0) > self.positions:
            raise BadInput(f"a sequence of {max(lengths)} tokens is longer than the {self.positions} positions at hand")
        for chosen in packs(lengths, limit):
            pack = [todo[i] for i in chosen]
            targets = [list(completions[i]) for i in pack]
            logprob, entropy = self._pack([list(prompts[i]) for i in pack], targets, temperature)
            edges = np.cumsum([len(c) for c in targets])[:-1]
            parts = (np.split(x.cpu().numpy(), edges) for x in (logprob, entropy))
            for i, a, b in zip(pack, *parts, strict=True):
                results[i] = Scores(a, b)
            if progress:
                progress(sum(map(len, targets)))
        return results

    def _pack(
        self, prompts: list[list[int]], completions: list[list[int]], temperature: float
    ) -> tuple[Tensor, Tensor]:
        # The last token predicts nothing that is scored, so it is left out of the forward.
        rows = [(p + c)[:-1] for p, c in zip(prompts, completions, strict=True)]
        lengths, device = [len(row) for row in rows], self.fast.weights.device
        ids = torch.tensor([t for row in rows for t in row], device=device)
        hidden = self.fast.hidden(ids, Batch.packed(lengths, device))
        starts = np.cumsum([0, *lengths[:-1]])
        wanted = [np.arange(s + len(p) - 1, s + n) for s, p, n in zip(starts, prompts, lengths, strict=True)]
        targets = torch.tensor([t for c in completions for t in c], device=device)
        return self.fast.logprobs(hidden[torch.from_numpy(np.concatenate(wanted)).to(device)], targets, temperature)
