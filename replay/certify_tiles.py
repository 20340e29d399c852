"""The tile engine's comparisons: every path through transformers inside the engine, and the same without it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from timscope.replay import paths
from timscope.replay.checks import Report, compare, control
from timscope.replay.exact import PARTS, ExactEngine
from timscope.replay.paths import Texts

CHUNKS = (1, 7, 15, 16, 17, 63, 64, 65)
FULL_PROMPTS = (120, 5, 33, 17, 1, 48, 20, 64, 9, 40, 2, 31, 16, 25, 12, 55, 3)
Case = tuple[str, paths.Path, list[int]]  # name, path, which of the texts it scores


def full_cases(device: str) -> Iterator[Case]:
    """Every comparison of the certificate, over 17 texts of which the first is the longest, past 130 tokens."""
    long, eight, batch = [0], list(range(1, 9)), list(range(1, 17))
    for size in (1, 2, 7, 16):
        yield f"batch of {size}, right padding", partial(paths.batched, size=size, side="right"), batch
    for size in (2, 7, 16):
        yield f"batch of {size}, left padding", partial(paths.batched, size=size, side="left"), batch
    yield "batch with one long text", partial(paths.batched, size=3, side="left"), [0, 1, 2]
    yield "rows permuted", _permuted, batch
    for chunk in CHUNKS:
        yield f"prefill in chunks of {chunk}", partial(paths.cached, chunk=chunk), long
    yield "decode with a KV cache, alone", partial(paths.cached, chunk=0, decode=True), long
    yield "decode with a KV cache, batch of 8", partial(paths.cached, chunk=0, decode=True), eight
    yield "training forward with autograd", partial(paths.training, size=8), eight
    yield "the same launch again", paths.packed, [0, *batch]
    if device == "cpu":
        yield "one thread", partial(_with_threads, count=1), batch
        yield "two threads", partial(_with_threads, count=2), batch


def quick_cases(device: str) -> Iterator[Case]:
    """The self-test before a replay: one comparison of each kind on five short texts, the first the longest."""
    yield "batch of 1", partial(paths.batched, size=1), [0]
    yield "batch of 5, left padding", partial(paths.batched, size=5, side="left"), list(range(5))
    yield "prefill in chunks of 17", partial(paths.cached, chunk=17), [0]
    yield "decode with a KV cache", partial(paths.cached, chunk=0, decode=True), [0]
    if device == "cpu":
        other = 2 if torch.get_num_threads() == 1 else 1
        yield f"threads: {other}", partial(_with_threads, count=other), list(range(5))


def _permuted(model: Any, texts: Texts) -> Tensor:
    order = torch.randperm(len(texts.prompts), generator=torch.Generator().manual_seed(5))
    return paths.batched(model, texts.take(order.tolist()), len(texts.prompts))[order.argsort()]


def _with_threads(model: Any, texts: Texts, count: int) -> Tensor:
    with paths.threads(count):
        return paths.packed(model, texts, workers=1)


def run_checks(
    model: Any,
    label: str,
    texts: Texts,
    cases: Sequence[Case],
    parts: Collection[str] = PARTS,
    report: Report | None = None,
) -> list[dict[str, Any]]:
    """Run each case inside the engine and compare it with the packed scores of the same engine, bit for bit.

    On a CPU the cases run on one intra-op thread, as the replay's workers do; the cases on threads set their own
    number.
    """
    checks = []
    with torch.inference_mode(), ExactEngine(model, parts):
        reference = paths.packed(model, texts)
        with paths.threads(1):
            for name, path, rows in cases:
                if report:
                    report(f"{label}: {name}")
                checks.append(compare(f"{label}: {name}", path(model, texts.take(rows)), reference[rows]))
    return checks


def _control(name: str, path: paths.Path, model: Any, texts: Texts) -> dict[str, Any]:
    """Plain transformers: each text alone in one forward, against the same texts by another path."""
    with torch.inference_mode(), paths.threads(1):
        return control(name, path(model, texts), paths.batched(model, texts, 1))


def run_controls(model: Any, label: str, texts: Texts) -> list[dict[str, Any]]:
    """Plain transformers on the comparisons that separate an exact engine from it: padded batches and decoding."""
    size, one = len(texts.prompts), texts.take(range(1))
    label = f"{label}, plain transformers"
    return [
        _control(f"{label}: batch of {size}, right padding", partial(paths.batched, size=size), model, texts),
        _control(
            f"{label}: batch of {size}, left padding", partial(paths.batched, size=size, side="left"), model, texts
        ),
        _control(f"{label}: prefill in chunks of 17", partial(paths.cached, chunk=17), model, one),
        _control(f"{label}: decode with a KV cache", partial(paths.cached, chunk=0, decode=True), model, one),
    ]
