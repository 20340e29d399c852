"""Replay of a recorded run: score its tokens with the exact engine, store them as one more witness and certify it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from timscope import __version__
from timscope.data import ReplayManifest, ReplayWriter, open_run
from timscope.replay import replay_input
from timscope.replay.certify import certify_quick
from timscope.replay.engines import choose
from timscope.replay.environment import environment
from timscope.replay.models import dtype_name
from timscope.replay.replay_output import bar_of, columns_of
from timscope.replay.supply import supply_for
from timscope.replay.trainer_layout import Emulation
from timscope.replay.vllm_engine import check_vllm
from timscope.replay.witnesses import check_engine, exact_witness, hf_witness, vllm_witness


def replay_run(
    run_path: str | os.PathLike[str],
    *,
    engine: str = "exact",
    steps: Sequence[int] | None = None,
    model: str | os.PathLike[str] | None = None,
    device: str = "cpu",
    dtype: str | torch.dtype | None = None,
    name: str | None = None,
    progress: bool | Callable[[int], None] = True,
    certificate: bool | dict[str, Any] = True,
    allow_other_weights: bool = False,
    implementation: str = "auto",
    emulation: Emulation | None = None,
    batch_invariant: bool = False,
) -> Path:
    """Score a run's response tokens and store them under RUN/replays/NAME; returns that folder.

    Every token is scored under the weights that sampled it. By default that is all steps whose weights are stored in
    the run (see `Run.weights`), version after version; of a run that stores none, all steps sampled under the first
    recorded version, with the model that the manifest names as its source. `model` gives the weights of that first
    version instead. The dtype is the trainer's, the temperature that of the trainer's log-probs. Steps already complete
    in a replay of that name are left as they are. engine "exact" is bit-stable, and `implementation` (auto, fast,
    tiles) chooses what computes it; "hf" imitates the trainer's forward as the manifest describes it, or as `emulation`
    says; "vllm" is vLLM's own prefill, in its batch-invariant mode with `batch_invariant`. `certificate` True proves
    the engine on the first model it loads (seconds) and stamps the outcome; a dict is stamped as given. Raises BadInput
    where run, model, vocabulary or weights do not fit together.

    The replay's manifest has `model_digest` where one model served all, or else `weights`: version, resume and digest
    of each.
    """
    check_engine(engine)
    with open_run(run_path) as run:
        usual = run.manifest.trainer.dtype or run.manifest.model.dtype or "float32"
        compute = dtype_name(dtype or usual)
        temperature = replay_input.replay_temperature(run)
        if engine == "vllm":  # what is missing is named before the weights are loaded
            check_vllm(temperature, batch_invariant)
        called = name or (engine if compute == usual else f"{engine}-{compute}")
        # vLLM loads the weights itself, so they need no room on its device.
        place = "cpu" if engine == "vllm" else device
        supply, shares = supply_for(run, model, steps, place, compute, allow_other_weights)
        items = [item for share in shares for item in share.items]
        supply.check(items)
        done = set(run.replay(called).complete_steps) if called in run.replays else set()
        todo = [share.without(done) for share in shares if not share.steps <= done]
        # Wrong or damaged weights are named before anything is written.
        models = supply.models(todo or shares[:1])
        loaded, digest = next(models)
        if engine == "exact":
            maker = choose(loaded.config, loaded.dtype, device, implementation)
            witness = exact_witness(maker, temperature)
        elif engine == "hf":
            witness = hf_witness(run, items, emulation or Emulation(), temperature)
        else:
            witness = vllm_witness(temperature, batch_invariant)
        record = environment(device, witness.version)
        manifest = ReplayManifest(
            name=called,
            engine=engine,  # type: ignore[arg-type]
            timscope_version=__version__,
            run_id=run.manifest.run_id,
            model_source=supply.spec,
            dtype=compute,
            device=device,
            temperature=temperature,
            environment=record,
            emulation=witness.emulation,
        )
        writer = ReplayWriter(run.path, manifest.model_copy(update=supply.said(run, called, shares, digest)))
    if certificate is True and engine == "exact" and todo:
        which = {"model_digest": digest, "weight_version": todo[0].version}
        certificate = certify_quick(loaded, maker=maker) | {"environment": record | which}
    if isinstance(certificate, dict):
        writer.write_certificate(certificate)
    left = Counter(item.step for share in todo for item in share.items)
    with bar_of(sum(item.tokens for share in todo for item in share.items), progress is True) as bar:
        advance = progress if callable(progress) else bar
        for share, (served, _) in zip(todo, chain([(loaded, digest)], models), strict=False):
            with witness.opened(served) as scored:
                for item in share.items:
                    writer.put(item.step, columns_of(engine, item, scored(item, advance)))
                    left[item.step] -= 1
                    if not left[item.step]:
                        writer.complete(item.step)
    return Path(writer.path)
