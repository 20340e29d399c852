"""The bitwise proof of the exact engine on this machine: every path must give equal bits, and controls must not.

A proof that cannot fail proves nothing. So the same comparisons are made with plain transformers, and these must
differ. One that does not is reported as blind: on an H200 plain transformers in bf16 is itself invariant to right
padding and to chunks, and only left padding and decoding tell it apart. Where every control of a dtype is blind,
exactness is not claimed.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Any, cast

import torch

from timscope.replay import certify_tiles
from timscope.replay.certify_tiles import FULL_PROMPTS
from timscope.replay.checks import Report, certificate
from timscope.replay.engines import Maker, TileEngine, choose, version_of
from timscope.replay.environment import environment
from timscope.replay.exact import PARTS
from timscope.replay.models import DTYPES, dtype_name, load_model
from timscope.replay.paths import Texts, random_texts
from timscope.replay.tiny import FAMILIES, tiny_model
from timscope.replay.weights import model_digest


def _proof(
    model: Any, maker: Maker, label: str, lengths: Sequence[int], response: int, full: bool, long: bool, report: Any
) -> list[dict[str, Any]]:
    """The checks of the implementation that serves the model, on random texts."""
    vocabulary = model.config.vocab_size
    texts = random_texts(vocabulary, lengths, response)
    if maker is TileEngine:
        device = model.device.type
        cases = (certify_tiles.full_cases if full else certify_tiles.quick_cases)(device)
        return certify_tiles.run_checks(model, label, texts, list(cases), report=report)
    from timscope.replay import certify_fast

    ways = certify_fast.full_cases(vocabulary, long) if full else certify_fast.quick_cases()
    return certify_fast.run_checks(cast(Any, maker(model)), label, texts, list(ways), report)


def _controls(model: Any, maker: Maker, label: str, texts: Texts) -> list[dict[str, Any]]:
    controls = certify_tiles.run_controls(model, label, texts)
    if maker is not TileEngine:
        from timscope.replay import certify_fast

        controls += certify_fast.run_controls(cast(Any, maker(model)), label, texts)
    return controls


def _odd_widths(dtype: str, maker: Maker, device: str, report: Report | None) -> list[dict[str, Any]]:
    """Random models of each family with an MLP width of 424 and of 391: widths that leave flat tails."""
    checks = []
    for family in FAMILIES:
        for width in (424, 391):
            model = tiny_model(family, DTYPES[dtype], width, head_dim=12 if maker is TileEngine else 64).to(device)
            label = f"{dtype}, random {family} with MLP width {width}"
            checks += _proof(model, maker, label, [70, 3, 18, 33, 1, 64], 16, False, False, report)
    return checks


def certify(
    model_spec: str | os.PathLike[str],
    device: str = "cpu",
    dtypes: Sequence[str | torch.dtype] = ("float32", "bfloat16"),
    progress: bool | Report = False,
    implementation: str = "auto",
    long: bool = False,
) -> dict[str, Any]:
    """Prove the engine on a model and this machine: {"exact", "checks", "negative_controls", "environment"}.

    `exact` is true only if every check is equal bit for bit on log-probabilities and, in every dtype, at least one
    negative control differs; those that do not are listed with `failed_as_it_must` false.
    `implementation`: fast, tiles, or auto, which is what a replay takes on that device; the environment's `engine`
    names it (per dtype in `engines`), and the proof holds for it alone. `long` adds sequences of up to 32,768 tokens
    on the fast engine. `progress` True shows on standard error what is being compared; a callable is told it.
    Minutes for a small model. BadInput for a model the engine does not know.
    """
    if progress is True:
        from rich.console import Console

        with Console(stderr=True).status("certify") as status:
            return _certify(
                model_spec, device, dtypes, lambda name: status.update(f"certify: {name}"), implementation, long
            )
    return _certify(model_spec, device, dtypes, progress or None, implementation, long)


def _certify(
    model_spec: str | os.PathLike[str],
    device: str,
    dtypes: Sequence[str | torch.dtype],
    report: Report | None,
    implementation: str,
    long: bool,
) -> dict[str, Any]:
    checks: list[dict[str, Any]] = []
    controls: list[dict[str, Any]] = []
    digests, engines = {}, {}
    for wanted in dtypes:
        name = dtype_name(wanted)
        model = load_model(model_spec, name, device)
        maker = choose(model.config, model.dtype, device, implementation)
        digests[name], engines[name] = model_digest(model), version_of(maker)
        checks += _proof(model, maker, name, FULL_PROMPTS, 16, True, long, report)
        texts = random_texts(model.config.vocab_size, FULL_PROMPTS, 16)
        controls += _controls(model, maker, name, texts.take(range(5)))
        del model
        checks += _odd_widths(name, maker, device, report)
    record = environment(device, " and ".join(sorted(set(engines.values()))))
    record |= {"model": os.fspath(model_spec), "model_digests": digests, "engines": engines}
    return certificate(checks, controls, record)


def certify_quick(model: Any, parts: Collection[str] = PARTS, maker: Maker = TileEngine) -> dict[str, Any]:
    """The self-test on a loaded model, in its dtype and on its device, that runs before each replay (seconds).

    `maker`: the implementation to prove; `parts`: of the tiles, for tests that leave one out.
    """
    lengths, response, label = [60, 4, 17, 30, 1], 12, dtype_name(model.dtype)
    texts = random_texts(model.config.vocab_size, lengths, response)
    if maker is TileEngine:
        cases = list(certify_tiles.quick_cases(str(model.device.type)))
        checks = certify_tiles.run_checks(model, label, texts, cases, parts)
    else:
        checks = _proof(model, maker, label, lengths, response, False, False, None)
    controls = _controls(model, maker, label, texts)
    return certificate(checks, controls, environment(model.device, version_of(maker)))
