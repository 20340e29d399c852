"""Replay of a recorded run: score its tokens with the exact engine, store them as one more witness and certify it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from timscope import __version__
from timscope.data import BadInput, ReplayManifest, ReplayWriter, Run, open_run
from timscope.data.manifest import WeightVersion
from timscope.data.schema import REPLAY_COLUMNS, REPLAY_ENTROPIES
from timscope.replay import replay_input
from timscope.replay.certify import certify_quick
from timscope.replay.environment import environment
from timscope.replay.exact import ExactEngine
from timscope.replay.models import DTYPES, dtype_name, load_config, load_model, load_tokenizer
from timscope.replay.scoring import Progress, score
from timscope.replay.weights import model_digest

ENGINES = ("exact", "hf")


@contextmanager
def _bar(total: int, show: bool) -> Iterator[Progress | None]:
    if not show:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("replay"), BarColumn(), MofNCompleteColumn(), TextColumn("tokens"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("replay", total=total)
        yield lambda tokens: bar.advance(task, tokens)


def _first_version(run: Run) -> WeightVersion | None:
    return min(run.manifest.weights, key=lambda w: w.version, default=None)


def _tokenizer(spec: str) -> Any | None:
    try:
        return load_tokenizer(spec)
    except BadInput:  # a checkpoint without a tokenizer still has weights; only the comparison of vocabularies is lost
        return None


def _load_weights(
    run: Run, spec: str, version: WeightVersion | None, device: str, allow_other: bool
) -> tuple[Any, str]:
    """The model in the dtype the run's weights had, and its digest, compared with the recorded one."""
    stored = run.manifest.model.dtype or run.manifest.trainer.dtype
    model = load_model(spec, stored if stored in DTYPES else None, device)
    digest = model_digest(model)
    if version is not None and version.digest and version.digest != digest and not allow_other:
        raise BadInput(
            f"the weights of {spec} are not the run's version {version.version} (digest {digest[:19]}, "
            f"recorded {version.digest[:19]}): give the recorded weights with --model, or accept these with "
            "--allow-other-weights"
        )
    return model, digest


def _store(writer: ReplayWriter, item: replay_input.StepInput, scores: Sequence[Any]) -> None:
    engine = writer.manifest.engine
    lengths = [len(c) for c in item.completions]
    positions = [np.arange(len(p), len(p) + n) for p, n in zip(item.prompts, lengths, strict=True)]
    writer.put(
        item.step,
        {
            "sequence": np.repeat(np.array(item.sequences, np.int64), lengths),
            "position": np.concatenate(positions).astype(np.int32),
            REPLAY_COLUMNS[engine]: np.concatenate([s.logprob for s in scores]),
            REPLAY_ENTROPIES[engine]: np.concatenate([s.entropy for s in scores]),
        },
    )
    writer.complete(item.step)


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
) -> Path:
    """Score a run's response tokens and store them under RUN/replays/NAME; returns that folder.

    By default all steps sampled under the first recorded weights version, with the model that the manifest names as
    its source, in the trainer's dtype and at the temperature of the trainer's log-probs. Steps already complete in a
    replay of that name are left as they are. engine "exact" is bit-stable; "hf" is plain transformers, one sequence a
    forward. `certificate` True proves the engine on this model first (seconds) and stamps the outcome; a dict is
    stamped as given. Raises BadInput where run, model, vocabulary or weights do not fit together.
    """
    if engine not in ENGINES:
        raise BadInput(f"there is no engine {engine!r}: choose {' or '.join(ENGINES)}")
    with open_run(run_path) as run:
        first = _first_version(run)
        known = first.version if first else None
        source = (first.source if first else None) or run.manifest.model.source
        if model is None and source is None:
            raise BadInput(f"the manifest of {run.path} does not say where its weights are: give them with --model")
        spec = os.fspath(model) if model is not None else replay_input.local_source(run, str(source))
        chosen = replay_input.choose_steps(run, None if allow_other_weights and steps else known, steps)
        usual = run.manifest.trainer.dtype or run.manifest.model.dtype or "float32"
        compute = dtype_name(dtype or usual)
        temperature = replay_input.replay_temperature(run)
        items = [replay_input.read_step(run, step) for step in chosen]
        replay_input.check_vocabulary(run, items, load_config(spec), _tokenizer(spec))
        loaded, digest = _load_weights(run, spec, first, device, allow_other_weights)
        loaded = loaded.to(DTYPES[compute])
        record = environment(device)
        writer = ReplayWriter(
            run.path,
            ReplayManifest(
                name=name or (engine if compute == usual else f"{engine}-{compute}"),
                engine=engine,  # type: ignore[arg-type]
                timscope_version=__version__,
                run_id=run.manifest.run_id,
                model_source=spec,
                model_digest=digest,
                weight_version=known,
                dtype=compute,
                device=device,
                temperature=temperature,
                environment=record,
            ),
        )
    todo = [item for item in items if item.step not in writer.complete_steps]
    if certificate is True and engine == "exact" and todo:
        certificate = certify_quick(loaded) | {"environment": record | {"model_digest": digest}}
    if isinstance(certificate, dict):
        writer.write_certificate(certificate)
    with (
        ExactEngine(loaded) if engine == "exact" else nullcontext(),
        _bar(sum(item.tokens for item in todo), progress is True) as bar,
    ):
        for item in todo:
            advance = progress if callable(progress) else bar
            texts = (item.prompts, item.completions)
            _store(writer, item, score(loaded, *texts, temperature, advance, packed=engine == "exact"))
    return Path(writer.path)
