"""The ways a token can be computed: alone, in a padded batch, in chunks, by decoding, packed, or in a training forward.

Each function takes the same sequences and returns the same log-probabilities, [sequences, response tokens] in
float32, by another path through the model. An exact engine gives equal bits on all of them; plain transformers does
not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import DynamicCache

from timscope.replay.scoring import head_logprobs, score

Side = Literal["left", "right"]


@dataclass(frozen=True)
class Texts:
    """Prompts of any lengths and completions of one length, as token ids."""

    prompts: list[list[int]]
    completions: list[list[int]]

    def take(self, rows: Sequence[int]) -> Texts:
        """The rows named, in that order."""
        return Texts([self.prompts[i] for i in rows], [self.completions[i] for i in rows])

    @property
    def response(self) -> int:
        """Response tokens a sequence."""
        return len(self.completions[0])


Path = Callable[[Any, Texts], Tensor]


def random_texts(vocabulary: int, prompt_lengths: Sequence[int], response: int, seed: int = 11) -> Texts:
    """Uniformly random token ids: a proof about arithmetic needs no words."""
    generator = torch.Generator().manual_seed(seed)

    def draw(count: int) -> list[int]:
        return [int(i) for i in torch.randint(0, vocabulary, (count,), generator=generator)]

    return Texts([draw(n) for n in prompt_lengths], [draw(response) for _ in prompt_lengths])


def _padded(texts: Texts, side: Side, device: Any) -> tuple[Tensor, Tensor, Tensor]:
    """ids, mask and position ids [B, L] of the batch, padded on one side with token 0."""
    rows = [p + c for p, c in zip(texts.prompts, texts.completions, strict=True)]
    width = max(map(len, rows))
    ids, mask = torch.zeros(len(rows), width, dtype=torch.int64), torch.zeros(len(rows), width, dtype=torch.int64)
    for i, row in enumerate(rows):
        columns = slice(0, len(row)) if side == "right" else slice(width - len(row), width)
        ids[i, columns], mask[i, columns] = torch.tensor(row), 1
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    return ids.to(device), mask.to(device), positions.to(device)


def packed(model: Any, texts: Texts, workers: int | None = None) -> Tensor:
    """The replay's own path: sequences end to end in one row. Only inside the engine."""
    scores = score(model, texts.prompts, texts.completions, workers=workers)
    return torch.stack([torch.from_numpy(s.logprob) for s in scores])


def batched(model: Any, texts: Texts, size: int, side: Side = "right") -> Tensor:
    """Padded batches of `size` sequences, one forward each, no cache."""
    parts = []
    for start in range(0, len(texts.prompts), size):
        batch = texts.take(range(start, min(start + size, len(texts.prompts))))
        ids, mask, positions = _padded(batch, side, model.device)
        forward = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, "use_cache": False}
        hidden = model.model(**forward).last_hidden_state
        ends = mask.shape[1] - mask.flip(-1).argmax(-1)  # column after the last real token
        columns = ends[:, None] - texts.response - 1 + torch.arange(texts.response, device=ids.device)
        chosen = hidden.gather(1, columns[..., None].expand(-1, -1, hidden.shape[-1])).flatten(0, 1)
        logprobs, _ = head_logprobs(model, chosen, ids.gather(1, columns + 1).flatten(), 1.0)
        parts.append(logprobs.view(-1, texts.response).cpu())
    return torch.cat(parts)


def cached(model: Any, texts: Texts, chunk: int, decode: bool = False) -> Tensor:
    """One left-padded batch through a KV cache: in chunks of `chunk` columns, or (decode) the prompt, then by ones."""
    ids, mask, positions = _padded(texts, "left", model.device)
    prompt, width = ids.shape[1] - texts.response, ids.shape[1] - 1
    edges = [0, *range(prompt, width + 1)] if decode else [*range(0, width, chunk), width]
    cache, parts = DynamicCache(config=model.config), []
    for start, end in pairwise(edges):
        hidden = model.model(
            input_ids=ids[:, start:end],
            attention_mask=mask[:, :end],
            position_ids=positions[:, start:end],
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        first = max(start, prompt - 1)
        if first < end:
            rows, targets = hidden[:, first - start :], ids[:, first + 1 : end + 1]
            logprobs, _ = head_logprobs(model, rows.flatten(0, 1), targets.flatten(), 1.0)
            parts.append(logprobs.view(len(texts.prompts), -1).cpu())
    return torch.cat(parts, dim=1)


def training(model: Any, texts: Texts, size: int) -> Tensor:
    """A right-padded forward in training mode with autograd recording, as a trainer runs it."""
    was = model.training
    model.train()
    try:
        with torch.inference_mode(False), torch.enable_grad():
            logprobs = batched(model, texts, size)
        if not logprobs.requires_grad:
            raise RuntimeError("the training forward recorded no gradient: the model's parameters do not require any")
        return logprobs.detach()
    finally:
        model.train(was)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run with `count` intra-op threads, then restore."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
