"""The bitwise proof of the fast engine: each path of fast_paths against the packed scores, and controls that must fail.

Kept apart from certify.py, because importing it imports triton.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn.functional import linear

from timscope.replay import fast_paths as ways
from timscope.replay.checks import Report, compare, control
from timscope.replay.fast.matmul import Plan
from timscope.replay.fast_engine import FastEngine
from timscope.replay.paths import Texts, random_texts

# Sequence lengths at and beside the edges of key blocks (64), query tiles (128) and pages (64).
EDGES = (1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513)
LONG = (1023, 1025, 2049, 4096, 4097, 8193, 16_383, 16_385, 32_768)
CHUNKS = (1, 7, 17, 63, 64, 65, 127, 128, 129)
Case = tuple[str, Callable[[FastEngine, Texts], ways.Pair]]


def _same(path: ways.Path, rows: Sequence[int] | None = None) -> Callable[[FastEngine, Texts], ways.Pair]:
    """A path over some of the texts against the packed scores of the same, each text packed with all the others."""

    def run(engine: FastEngine, texts: Texts) -> ways.Pair:
        chosen = range(len(texts.prompts)) if rows is None else rows
        scores = engine.score(texts.prompts, texts.completions)
        wanted = torch.cat([torch.from_numpy(scores[i].logprob) for i in chosen])
        return path(engine, texts.take(chosen)), wanted

    return run


def _edges(lengths: Sequence[int], path: ways.Path, vocabulary: int) -> Callable[[FastEngine, Texts], ways.Pair]:
    def run(engine: FastEngine, _: Texts) -> ways.Pair:
        return _same(path)(engine, ways.edges(lengths, random_texts(vocabulary, [max(lengths)], 1, seed=12)))

    return run


def full_cases(vocabulary: int, long: bool = False) -> Iterator[Case]:
    """Every comparison of the certificate, over 17 texts of which the first is the longest."""
    for size in (1, 2, 7, 16):
        yield f"packs of {size}", _same(partial(ways.packs_of, size=size))
    yield "rows permuted", _same(ways.permuted)
    for chunk in CHUNKS:
        yield f"prefill in chunks of {chunk}", _same(partial(ways.paged, chunk=chunk), [0])
    yield "prefill in chunks of 17, batch of 17", _same(partial(ways.paged, chunk=17))
    yield "decode over a paged cache, alone", _same(partial(ways.paged, chunk=0), [0])
    yield "decode over a paged cache, batch of 8", _same(partial(ways.paged, chunk=0), range(1, 9))
    yield "decode over a paged cache, batch of 17", _same(partial(ways.paged, chunk=0))
    yield "the same launch again", _same(ways.packed)
    yield f"lengths {EDGES[0]} to {EDGES[-1]}, each alone", _edges(EDGES, partial(ways.packs_of, size=1), vocabulary)
    yield f"lengths {EDGES[0]} to {EDGES[-1]}, decoded", _edges(EDGES, partial(ways.paged, chunk=0), vocabulary)
    if long:
        for length in LONG:
            yield f"length {length}, decoded", _edges((length,), partial(ways.paged, chunk=0), vocabulary)
            yield f"length {length}, chunks of 1000", _edges((length, 77), partial(ways.paged, chunk=1000), vocabulary)
    for slots, temperature in ((1, 1.0), (5, 0.7), (16, 1.0)):
        name = f"drawn by the generator, {slots} at once, temperature {temperature}"
        yield name, partial(ways.generated, slots=slots, temperature=temperature)
    yield "products at other row counts", partial(ways.products, most=8192, tries=24)


def quick_cases() -> Iterator[Case]:
    """The self-test before a replay: one comparison of each kind."""
    yield "packs of 1", _same(partial(ways.packs_of, size=1))
    yield "prefill in chunks of 17", _same(partial(ways.paged, chunk=17), [0])
    yield "decode over a paged cache", _same(partial(ways.paged, chunk=0))
    yield "drawn by the generator", partial(ways.generated, slots=4, temperature=0.7)
    yield "products at other row counts", partial(ways.products, most=2048, tries=6)


class _Unplanned(Plan):
    """Whatever the library does with these rows: what the plan is there to prevent."""

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return linear(x, weight, bias)


def run_checks(
    engine: FastEngine, label: str, texts: Texts, cases: Sequence[Case], report: Report | None = None
) -> list[dict[str, Any]]:
    """Run each case in the engine and compare bit for bit."""
    checks = []
    with engine:
        for name, case in cases:
            if report:
                report(f"{label}: {name}")
            checks.append(compare(f"{label}: {name}", *case(engine, texts)))
    return checks


def run_controls(engine: FastEngine, label: str, texts: Texts) -> list[dict[str, Any]]:
    """The engine with the library's own choice of products: decoded against packed."""
    with engine:
        engine.fast.plan = _Unplanned()
        pair = _same(partial(ways.paged, chunk=0))(engine, texts)
    return [control(f"{label}, products as the library chooses: decode over a paged cache", *pair)]
