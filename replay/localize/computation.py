"""One witness at work on one model: installed, asked for log-probs, taken off again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Protocol

import torch
from torch import Tensor

from timscope.replay.exact import ExactEngine, packed_layout, token_logprobs
from timscope.replay.exact import attention as exact_attention
from timscope.replay.localize.batches import Batch, alone, padded
from timscope.replay.localize.patching import Patches, cast_parameters
from timscope.replay.localize.routing import use_attention
from timscope.replay.localize.texts import Text
from timscope.replay.localize.witness import Witness
from timscope.replay.models import DTYPES

# Log-probs [N] float32 of token ids [N] under softmax(logits [N, V] / temperature).
LogSoftmax = Callable[[Tensor, Tensor, float], Tensor]


class Watcher(Protocol):
    """Sees a forward's batch before it and the log-probs after it."""

    def begin(self, batch: Batch) -> None:
        """A forward of this batch starts."""

    def end(self, logprobs: Tensor) -> None:
        """Its log-probs [scored rows]."""


def exact_log_softmax(logits: Tensor, ids: Tensor, temperature: float) -> Tensor:
    """The exact engine's: tree sums in float32."""
    return token_logprobs(logits, ids, temperature)[0]


def plain_log_softmax(logits: Tensor, ids: Tensor, temperature: float) -> Tensor:
    """What trainers do: logits in float32, the chosen one minus torch's logsumexp."""
    x = logits.to(torch.float32)
    x = x if temperature == 1.0 else x / temperature
    return x.gather(-1, ids[:, None])[:, 0] - torch.logsumexp(x, -1)


class Computation:
    """Context manager: inside it the model computes as the witness does, afterwards it is as before, bit for bit."""

    def __init__(self, model: Any, witness: Witness, temperature: float = 1.0) -> None:
        self.model, self.witness, self.temperature = model, witness, temperature
        self.log_softmax: LogSoftmax = exact_log_softmax if witness.engine == "exact" else plain_log_softmax
        self._patches = Patches()
        self._engine = ExactEngine(model) if witness.engine == "exact" else None

    def __enter__(self) -> Computation:
        cast_parameters(self.model, DTYPES[self.witness.dtype], self._patches)
        if self._engine is not None:
            self._engine.__enter__()
        use_attention(self.model, self.witness.attention or exact_attention.NAME, self._patches)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patches.undo()
        if self._engine is not None:
            self._engine.__exit__(kind, value, trace)

    @property
    def linear(self) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
        """The witness's own matrix product with a weight: exact tiles, or torch's."""
        return torch.nn.functional.linear if self._engine is None else self._engine.plan.linear

    def _batches(self, texts: Sequence[Text]) -> Iterator[Batch]:
        device = self.model.device
        padding = self.witness.padding
        return alone(texts, device) if padding is None else padded(texts, padding, device)

    @torch.inference_mode()
    def score(self, texts: Sequence[Text], watcher: Watcher | None = None) -> Tensor:
        """Log-probs (nats, float32, on the CPU) of all response tokens, in the order of the sequences."""
        parts = []
        for batch in self._batches(texts):
            if watcher is not None:
                watcher.begin(batch)
            forward: dict[str, Any] = {
                "input_ids": batch.ids,
                "attention_mask": batch.mask,
                "position_ids": batch.positions,
            }
            if batch.mask is None:  # made once a forward instead of once a layer
                forward["exact_layout"] = packed_layout([batch.ids.shape[1]], batch.ids.device)
            hidden = self.model.model(**forward, use_cache=False).last_hidden_state
            logits = self.model.lm_head(hidden.reshape(-1, hidden.shape[-1])[batch.scored])
            logprobs = self.log_softmax(logits, batch.targets, self.temperature)
            if watcher is not None:
                watcher.end(logprobs)
            parts.append(logprobs.to("cpu", torch.float32))
        return torch.cat(parts)
