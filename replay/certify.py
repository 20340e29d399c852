"""The bitwise proof of the exact engine on this machine: every path must give equal bits, and controls must not.

A proof that cannot fail proves nothing. So the same comparisons are made with plain transformers, and these must
differ. One that does not is reported as blind: on an H200 plain transformers in bf16 is itself invariant to right
padding and to chunks, and only left padding and decoding tell it apart. Where every control of a dtype is blind,
exactness is not claimed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from timscope.replay import paths
from timscope.replay.environment import environment
from timscope.replay.exact import PARTS, ExactEngine
from timscope.replay.models import DTYPES, dtype_name, load_model
from timscope.replay.paths import Texts, random_texts
from timscope.replay.tiny import FAMILIES, tiny_model
from timscope.replay.weights import model_digest

CHUNKS = (1, 7, 15, 16, 17, 63, 64, 65)
FULL_PROMPTS = (120, 5, 33, 17, 1, 48, 20, 64, 9, 40, 2, 31, 16, 25, 12, 55, 3)
Case = tuple[str, paths.Path, list[int]]  # name, path, which of the texts it scores
Report = Callable[[str], None]


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


def _compare(name: str, found: Tensor, reference: Tensor) -> dict[str, Any]:
    return {
        "name": name,
        "equal": torch.equal(found, reference),
        "tokens": found.numel(),
        "max_abs_diff": float((found - reference).abs().max()),
    }


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
                checks.append(_compare(f"{label}: {name}", path(model, texts.take(rows)), reference[rows]))
    return checks


def _control(name: str, path: paths.Path, model: Any, texts: Texts) -> dict[str, Any]:
    """Plain transformers: each text alone in one forward, against the same texts by another path."""
    with torch.inference_mode(), paths.threads(1):
        result = _compare(name, path(model, texts), paths.batched(model, texts, 1))
    return {
        "name": name,
        "failed_as_it_must": not result["equal"],
        "tokens": result["tokens"],
        "max_abs_diff": result["max_abs_diff"],
    }


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


def _odd_widths(dtype: str, report: Report | None) -> list[dict[str, Any]]:
    """Random models of each family with an MLP width of 424 and of 391: widths that leave flat tails."""
    checks = []
    for family in FAMILIES:
        for width in (424, 391):
            model = tiny_model(family, DTYPES[dtype], width)
            texts = random_texts(model.config.vocab_size, [70, 3, 18, 33, 1, 64], 16)
            label = f"{dtype}, random {family} with MLP width {width}"
            checks += run_checks(model, label, texts, list(quick_cases("cpu")), report=report)
    return checks


def _certificate(
    checks: list[dict[str, Any]], controls: list[dict[str, Any]], record: dict[str, Any]
) -> dict[str, Any]:
    powers: dict[str, bool] = {}
    for control in controls:
        label = control["name"].partition(",")[0]
        powers[label] = powers.get(label, False) or control["failed_as_it_must"]
    exact = all(c["equal"] for c in checks) and all(powers.values())
    return {
        "exact": bool(checks) and bool(controls) and exact,
        "checks": checks,
        "negative_controls": controls,
        "environment": record,
    }


def certify(
    model_spec: str | os.PathLike[str],
    device: str = "cpu",
    dtypes: Sequence[str | torch.dtype] = ("float32", "bfloat16"),
    progress: bool | Report = False,
) -> dict[str, Any]:
    """Prove the engine on a model and this machine: {"exact", "checks", "negative_controls", "environment"}.

    `exact` is true only if every check is equal bit for bit on log-probabilities and, in every dtype, at least one
    negative control differs; those that do not are listed with `failed_as_it_must` false.
    `progress` True shows on standard error what is being compared; a callable is told it. Minutes for a small model.
    BadInput for a model the engine does not know.
    """
    if progress is True:
        from rich.console import Console

        with Console(stderr=True).status("certify") as status:
            return _certify(model_spec, device, dtypes, lambda name: status.update(f"certify: {name}"))
    return _certify(model_spec, device, dtypes, progress or None)


def _certify(
    model_spec: str | os.PathLike[str], device: str, dtypes: Sequence[str | torch.dtype], report: Report | None
) -> dict[str, Any]:
    checks: list[dict[str, Any]] = []
    controls: list[dict[str, Any]] = []
    digests = {}
    for wanted in dtypes:
        name = dtype_name(wanted)
        model = load_model(model_spec, name, device)
        digests[name] = model_digest(model)
        texts = random_texts(model.config.vocab_size, FULL_PROMPTS, 16)
        checks += run_checks(model, name, texts, list(full_cases(device)), report=report)
        controls += run_controls(model, name, texts.take(range(5)))
        del model
        checks += _odd_widths(name, report)
    record = environment(device) | {"model": os.fspath(model_spec), "model_digests": digests}
    return _certificate(checks, controls, record)


def certify_quick(model: Any, parts: Collection[str] = PARTS) -> dict[str, Any]:
    """The self-test on a loaded model, in its dtype and on its device, that runs before each replay (seconds)."""
    texts = random_texts(model.config.vocab_size, [60, 4, 17, 30, 1], 12)
    label, device = dtype_name(model.dtype), str(model.device.type)
    checks = run_checks(model, label, texts, list(quick_cases(device)), parts)
    return _certificate(checks, run_controls(model, label, texts), environment(model.device))
