"""The device side of generation: buffers of fixed address that one decode step reads and writes, graph or not."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from timscope.replay.fast.cache import PAGE, Cache
from timscope.replay.fast.forward import Batch, FastModel
from timscope.replay.fast.head import sample
from timscope.replay.fast.sampling import Sampling

STOPS = 8  # stop tokens a request may name


class Slots:
    """`count` responses in flight. A slot that is done writes to the scratch page and records nothing more."""

    def __init__(self, count: int, tokens: int, device: torch.device) -> None:
        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.device, self.count = device, count
        self.ids, self.seeds = zeros(count, dtype=torch.int64), zeros(count, dtype=torch.int64)
        self.positions, self.steps, self.limits, self.top_k = (zeros(count) for _ in range(4))
        self.temperatures, self.top_p = zeros(count, dtype=torch.float32), zeros(count, dtype=torch.float32) + 1
        self.stops = zeros(count, STOPS, dtype=torch.int64) - 1
        self.done = zeros(count, dtype=torch.bool) | True
        self.table = zeros(count, -(-tokens // PAGE))
        self.starts = torch.arange(count + 1, dtype=torch.int32, device=device)
        self.slot = torch.arange(count, device=device)
        self.out_ids = zeros(count, tokens, dtype=torch.int32)
        self.out_logprobs, self.out_kept = (zeros(count, tokens, dtype=torch.float32) for _ in range(2))

    def fill(
        self, places: Sequence[int], prompts: Sequence[Sequence[int]], asked: Sequence[Sampling], table: Tensor
    ) -> None:
        """Put new requests into `places`; `table` [n, pages] on the host. The prompts' last tokens come next."""
        index = torch.tensor(places, device=self.device)
        stops = [([*s.stop] + [-1] * STOPS)[:STOPS] for s in asked]
        for buffer, values in (
            (self.ids, [p[-1] for p in prompts]),
            (self.positions, [len(p) - 1 for p in prompts]),
            (self.seeds, [s.seed for s in asked]),
            (self.steps, [0] * len(places)),
            (self.limits, [s.max_tokens for s in asked]),
            (self.top_k, [s.top_k for s in asked]),
            (self.top_p, [s.top_p for s in asked]),
            (self.temperatures, [s.temperature for s in asked]),
            (self.stops, stops),
            (self.done, [False] * len(places)),
        ):
            buffer[index] = torch.tensor(values, dtype=buffer.dtype, device=self.device)
        self.table[index] = table.to(self.device)

    def step(self, model: FastModel, cache: Cache, size: int, truncate: bool) -> None:
        """One token for the first `size` slots. No host read: may be captured in a graph."""
        positions, steps, done = self.positions[:size], self.steps[:size], self.done[:size]
        at, table = positions.long(), self.table[:size]
        rows = table.gather(1, (at // PAGE)[:, None])[:, 0].long() * PAGE + at % PAGE
        rows = torch.where(done, 0, rows)
        batch = Batch(positions, self.starts[: size + 1], positions + 1, 1, rows, table)
        logits = model.logits(model.hidden(self.ids[:size], batch, cache))
        temperatures, top_p, top_k, seeds = (x[:size] for x in (self.temperatures, self.top_p, self.top_k, self.seeds))
        token, logprob, kept = sample(logits, temperatures, top_p, top_k, seeds, steps, truncate)
        index = (self.slot[:size], steps.long())
        for buffer, value in ((self.out_ids, token.int()), (self.out_logprobs, logprob), (self.out_kept, kept)):
            buffer[index] = torch.where(done, buffer[index], value)
        ended = (token[:, None] == self.stops[:size]).any(1) | (steps + 1 >= self.limits[:size])
        self.ids[:size] = token
        self.steps[:size] = torch.where(done, steps, steps + 1)
        now = done | ended
        self.positions[:size] = torch.where(now, 0, positions + 1)
        self.done[:size] = now
