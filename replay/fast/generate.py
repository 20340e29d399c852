"""Generation with the exact engine: continuous batching over a paged cache, one CUDA graph a batch size.

Everything a step needs stays on the device (slots.py); the host looks every few steps which responses are done, takes
them out and lets waiting requests in. Requests are prefilled packed, all but their last token, which the first decode
step reads; so every response token comes from a decode step, and scoring gives it the same bits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from timscope.data.errors import BadInput
from timscope.replay.fast.cache import PAGE, Cache
from timscope.replay.fast.forward import Batch, FastModel
from timscope.replay.fast.sampling import Completion, Sampling
from timscope.replay.fast.slots import STOPS, Slots

SIZES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512)
PREFILL_TOKENS = 16_384
LOOK_EVERY = 8  # decode steps between two looks of the host; a response that ends between them costs idle slots only


@dataclass
class _Request:
    number: int
    prompt: list[int]
    sampling: Sampling
    pages: list[int]


class Generator:
    """Draws responses from a FastModel. `slots`: responses decoded at once; `tokens`: longest prompt plus response;
    `cache_tokens`: room of the cache, by default all slots at full length. Log-probs equal scoring bit for bit."""

    def __init__(
        self,
        model: FastModel,
        *,
        slots: int = 256,
        tokens: int = 2048,
        cache_tokens: int | None = None,
        graphs: bool | None = None,
    ) -> None:
        device = model.weights.device
        self.model, self.tokens, self.slots = model, tokens, slots
        self.graphs = device.type == "cuda" if graphs is None else graphs
        self.cache = Cache(model.weights, 1 + -(-(cache_tokens or slots * tokens) // PAGE))
        self.state = Slots(slots, tokens, device)
        self._captured: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling | Sequence[Sampling]) -> list[Completion]:
        """A response to each prompt (token ids), in order. BadInput where one is empty or does not fit."""
        asked = self._checked(prompts, sampling)
        results: list[Completion | None] = [None] * len(prompts)
        waiting = deque(_Request(i, list(p), s, []) for i, (p, s) in enumerate(zip(prompts, asked, strict=True)))
        running: dict[int, _Request] = {}
        while waiting or running:
            self._admit(waiting, running)
            size = min(next((n for n in SIZES if n > max(running)), self.slots), self.slots)
            truncate = any(r.sampling.truncates for r in running.values())
            for _ in range(min(LOOK_EVERY, max(r.sampling.max_tokens for r in running.values()))):
                self._step(size, truncate)
            self._collect(running, results)
        return [r for r in results if r is not None]

    def _checked(self, prompts: Sequence[Sequence[int]], sampling: Sampling | Sequence[Sampling]) -> list[Sampling]:
        asked = [sampling] * len(prompts) if isinstance(sampling, Sampling) else list(sampling)
        if len(asked) != len(prompts):
            raise BadInput(f"{len(asked)} sampling parameters for {len(prompts)} prompts: give one, or one a prompt")
        for i, (prompt, wanted) in enumerate(zip(prompts, asked, strict=True)):
            size = len(prompt) + wanted.max_tokens
            if not len(prompt) or size > self.tokens:
                raise BadInput(
                    f"prompt {i} has {len(prompt)} tokens and asks for {wanted.max_tokens} more: it needs at least "
                    f"one, and both together must fit the {self.tokens} that this generator was made for"
                )
            if -(-size // PAGE) > self.cache.pages - 1:
                raise BadInput(f"prompt {i} needs {size} tokens of cache: give more cache_tokens")
            if len(wanted.stop) > STOPS:
                raise BadInput(f"prompt {i} names {len(wanted.stop)} stop tokens: at most {STOPS}")
        return asked

    def _admit(self, waiting: deque[_Request], running: dict[int, _Request]) -> None:
        """Prefill as many waiting requests as there are slots, pages and PREFILL_TOKENS for."""
        new: dict[int, _Request] = {}
        size = 0
        for place in (p for p in range(self.slots) if p not in running):
            if not waiting or size >= PREFILL_TOKENS:
                break
            first = waiting[0]
            pages = self.cache.take(-(-(len(first.prompt) + first.sampling.max_tokens) // PAGE))
            if pages is None:
                break
            first.pages = pages
            new[place] = waiting.popleft()
            size += len(first.prompt)
        if new:
            self._prefill(new)
            running.update(new)

    def _prefill(self, new: dict[int, _Request]) -> None:
        requests = list(new.values())
        table = torch.zeros(len(new), self.state.table.shape[1], dtype=torch.int32)
        for row, request in zip(table, requests, strict=True):
            row[: len(request.pages)] = torch.tensor(request.pages, dtype=torch.int32)
        self.state.fill(list(new), [r.prompt for r in requests], [r.sampling for r in requests], table)
        keep = [i for i, r in enumerate(requests) if len(r.prompt) > 1]
        if not keep:
            return
        lengths = [len(requests[i].prompt) - 1 for i in keep]
        device = self.model.weights.device
        batch = Batch.packed(lengths, device)
        owner = torch.tensor(keep).repeat_interleave(torch.tensor(lengths))
        at = torch.cat([torch.arange(n) for n in lengths])
        batch.rows = (table[owner, at // PAGE].long() * PAGE + at % PAGE).to(device)
        batch.table = table[keep].to(device)
        ids = torch.tensor([t for i in keep for t in requests[i].prompt[:-1]], device=device)
        self.model.hidden(ids, batch, self.cache)

    def _step(self, size: int, truncate: bool) -> None:
        if not self.graphs:
            self.state.step(self.model, self.cache, size, truncate)
            return
        key = (size, truncate)
        if key not in self._captured:
            self._captured[key] = self._capture(size, truncate)
        self._captured[key].replay()

    def _capture(self, size: int, truncate: bool) -> torch.cuda.CUDAGraph:
        """Record a step. The warm-up steps compile kernels and probe the plan; they run with every slot done."""
        saved = {name: value.clone() for name, value in vars(self.state).items() if isinstance(value, torch.Tensor)}
        self.state.done.fill_(True)
        self.state.positions.zero_()
        for _ in range(2):
            self.state.step(self.model, self.cache, size, truncate)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.state.step(self.model, self.cache, size, truncate)
        for name, value in saved.items():
            getattr(self.state, name).copy_(value)
        return graph

    def _collect(self, running: dict[int, _Request], results: list[Completion | None]) -> None:
        """Take out what is done; its pages and its slot are free again."""
        state = self.state
        done, steps = state.done.tolist(), state.steps.tolist()
        ended = [place for place in running if done[place]]
        if not ended:
            return
        index, longest = torch.tensor(ended, device=state.device), max(steps[p] for p in ended)
        columns = (x[index, :longest].tolist() for x in (state.out_ids, state.out_logprobs, state.out_kept))
        for place, ids, logprobs, kept in zip(ended, *columns, strict=True):
            request, n = running.pop(place), steps[place]
            reason = "stop" if ids[n - 1] in request.sampling.stop else "length"
            results[request.number] = Completion(ids[:n], logprobs[:n], kept[:n], reason)
            self.cache.give(request.pages)
