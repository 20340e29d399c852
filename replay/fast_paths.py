"""The ways the fast engine can compute a token: packs of any sizes, chunks and decoding over pages, generation.

Each path takes an engine and texts and gives the log-probabilities of all response tokens, end to end in the order of
the texts; responses may differ in length. An exact engine gives equal bits on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from timscope.replay.fast.cache import PAGE, Cache
from timscope.replay.fast.forward import Batch
from timscope.replay.fast.generate import Generator
from timscope.replay.fast.matmul import COUNTS, sequential
from timscope.replay.fast.sampling import Sampling
from timscope.replay.fast_engine import FastEngine
from timscope.replay.paths import Texts

Pair = tuple[Tensor, Tensor]  # what a path gave, what it must equal
Path = Callable[[FastEngine, Texts], Tensor]


def packed(engine: FastEngine, texts: Texts, temperature: float = 1.0) -> Tensor:
    """The replay's own path: as many sequences end to end as one forward takes."""
    scores = engine.score(texts.prompts, texts.completions, temperature)
    return torch.cat([torch.from_numpy(s.logprob) for s in scores])


def packs_of(engine: FastEngine, texts: Texts, size: int) -> Tensor:
    """Packs of `size` sequences, in the order of the texts."""
    count = len(texts.prompts)
    parts = [texts.take(range(i, min(i + size, count))) for i in range(0, count, size)]
    return torch.cat([packed(engine, part) for part in parts])


def permuted(engine: FastEngine, texts: Texts) -> Tensor:
    """Small packs of the texts in another order."""
    order = torch.randperm(len(texts.prompts), generator=torch.Generator().manual_seed(5)).tolist()
    other = texts.take(order)
    placed = dict(zip(order, engine.score(other.prompts, other.completions, limit=200), strict=True))
    return torch.cat([torch.from_numpy(placed[i].logprob) for i in range(len(order))])


def _cuts(prompt: int, rows: int, chunk: int) -> list[int]:
    """Where a sequence of `rows` rows is cut: every `chunk`, or (0) before the prompt's last token and then by ones."""
    if chunk:
        return [*range(0, rows, chunk), rows]
    return sorted({0, *range(prompt - 1, rows), rows})


@torch.inference_mode()
def paged(engine: FastEngine, texts: Texts, chunk: int) -> Tensor:
    """All texts at once over one paged cache, in chunks of `chunk`, or (0) the prompt and then token by token."""
    fast = engine.fast
    device = fast.weights.device
    rows = [(p + c)[:-1] for p, c in zip(texts.prompts, texts.completions, strict=True)]
    cuts = [_cuts(len(p), len(row), chunk) for p, row in zip(texts.prompts, rows, strict=True)]
    pages = [-(-len(row) // PAGE) for row in rows]
    cache = Cache(fast.weights, 1 + sum(pages))
    table = torch.zeros(len(rows), max(pages), dtype=torch.int32)
    for i in reversed(range(len(rows))):  # pages in an order of their own, so that a table read wrongly shows
        table[i, : pages[i]] = torch.tensor(cache.take(pages[i]), dtype=torch.int32)
    found: list[list[Tensor]] = [[] for _ in rows]
    for step in range(max(map(len, cuts)) - 1):
        active = [i for i, c in enumerate(cuts) if step + 1 < len(c)]
        spans = [(cuts[i][step], cuts[i][step + 1]) for i in active]
        hidden = _forward(engine, cache, [rows[i] for i in active], spans, table[active])
        begin = 0
        for i, (start, end) in zip(active, spans, strict=True):
            prompt = len(texts.prompts[i])
            first = max(start, prompt - 1)
            if first < end:
                kept = hidden[begin + first - start : begin + end - start]
                targets = texts.completions[i][first + 1 - prompt : end + 1 - prompt]
                found[i].append(fast.logprobs(kept, torch.tensor(targets, device=device))[0].cpu())
            begin += end - start
    return torch.cat([part for parts in found for part in parts])


def _forward(
    engine: FastEngine, cache: Cache, rows: Sequence[list[int]], spans: Sequence[tuple[int, int]], table: Tensor
) -> Tensor:
    """Hidden states of rows [start, end) of each sequence, packed, over the cache."""
    device = engine.fast.weights.device
    at = torch.cat([torch.arange(start, end) for start, end in spans])
    sizes = torch.tensor([end - start for start, end in spans])
    owner = torch.arange(len(rows)).repeat_interleave(sizes)
    starts = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
    batch = Batch(
        at.int().to(device),
        starts.int().to(device),
        torch.tensor([end for _, end in spans], dtype=torch.int32, device=device),
        int(sizes.max()),
        (table[owner, at // PAGE].long() * PAGE + at % PAGE).to(device),
        table.to(device),
    )
    ids = torch.tensor([t for row, (a, b) in zip(rows, spans, strict=True) for t in row[a:b]], device=device)
    return engine.fast.hidden(ids, batch, cache)


def generated(engine: FastEngine, texts: Texts, slots: int, temperature: float) -> Pair:
    """Log-probs of responses drawn by the generator, and of the same responses scored."""
    longest = max(map(len, texts.prompts)) + texts.response
    generator = Generator(engine.fast, slots=slots, tokens=longest)
    asked = [Sampling(temperature, max_tokens=texts.response, seed=i) for i in range(len(texts.prompts))]
    drawn = generator.generate(texts.prompts, asked)
    said = torch.tensor([x for c in drawn for x in c.logprobs])
    return said, packed(engine, Texts(texts.prompts, [c.token_ids for c in drawn]), temperature)


@torch.inference_mode()
def products(engine: FastEngine, _: Texts, most: int, tries: int) -> Pair:
    """Every kind of matrix product at row counts the plan never tried: each row's largest difference to the sequential
    sum, and zeros."""
    fast = engine.fast
    layer, head = fast.weights.layers[0], fast.weights.head
    pairs = [(layer.qkv, layer.qkv_bias), (layer.out, layer.out_bias), (layer.gate_up, None), (layer.down, None)]
    generator = torch.Generator().manual_seed(6)
    counts = {int(n) for n in torch.randint(1, most, (4 * tries,), generator=generator)} - set(COUNTS)
    found = []
    for weight, bias in [*pairs, (head, None)]:
        x = torch.randn(most, weight.shape[1], generator=generator).to(weight.device, weight.dtype)
        wanted = sequential(x, weight, bias)
        for count in sorted(counts)[:tries]:
            rows = fast.plan.linear(x[:count], weight, bias)
            found.append((rows - wanted[:count]).abs().amax(1).float().cpu())
    return torch.cat(found), torch.zeros(sum(map(len, found)))


def edges(lengths: Sequence[int], texts: Texts) -> Texts:
    """Of each length, its first tokens of the longest text: prompt of 1, or all but the last 16 rows."""
    whole = texts.prompts[0] + texts.completions[0]
    if max(lengths) + 1 > len(whole):
        raise ValueError(f"edges up to {max(lengths)} need a text of {max(lengths) + 1} tokens")
    cuts = [(max(1, n - 15), n + 1) for n in lengths]
    return Texts([whole[:p] for p, _ in cuts], [whole[p:n] for p, n in cuts])
