"""Replay of a recorded run: score its tokens with the exact engine, store them as one more witness and certify it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from timscope import __version__
from timscope.data import BadInput, ReplayManifest, ReplayWriter, Run, open_run
from timscope.data.schema import REPLAY_COLUMNS, REPLAY_ENTROPIES
from timscope.replay import replay_input
from timscope.replay.certify import certify_quick
from timscope.replay.environment import environment
from timscope.replay.exact import ExactEngine
from timscope.replay.models import dtype_name
from timscope.replay.named_model import Named
from timscope.replay.scoring import Progress, score
from timscope.replay.supply import Recorded, Supply
from timscope.replay.versions import Share, given_shares, recorded_shares

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


def _columns(engine: str, item: replay_input.StepInput, scores: Sequence[Any]) -> dict[str, Any]:
    lengths = [len(c) for c in item.completions]
    positions = [np.arange(len(p), len(p) + n) for p, n in zip(item.prompts, lengths, strict=True)]
    return {
        "sequence": np.repeat(np.array(item.sequences, np.int64), lengths),
        "position": np.concatenate(positions).astype(np.int32),
        REPLAY_COLUMNS[engine]: np.concatenate([s.logprob for s in scores]),
        REPLAY_ENTROPIES[engine]: np.concatenate([s.entropy for s in scores]),
    }


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

    Every token is scored under the weights that sampled it. By default that is all steps whose weights are stored in
    the run (see `Run.weights`), version after version; of a run that stores none, all steps sampled under the first
    recorded version, with the model that the manifest names as its source. `model` gives the weights of that first
    version instead. The dtype is the trainer's, the temperature that of the trainer's log-probs. Steps already complete
    in a replay of that name are left as they are. engine "exact" is bit-stable; "hf" is plain transformers, one
    sequence a forward. `certificate` True proves the engine on the first model it loads (seconds) and stamps the
    outcome; a dict is stamped as given. Raises BadInput where run, model, vocabulary or weights do not fit together.

    The replay's manifest has `model_digest` where one model served all, or else `weights`: version, resume and digest
    of each.
    """
    if engine not in ENGINES:
        raise BadInput(f"there is no engine {engine!r}: choose {' or '.join(ENGINES)}")
    with open_run(run_path) as run:
        usual = run.manifest.trainer.dtype or run.manifest.model.dtype or "float32"
        compute = dtype_name(dtype or usual)
        called = name or (engine if compute == usual else f"{engine}-{compute}")
        supply, shares = _weights(run, model, steps, device, compute, allow_other_weights)
        temperature = replay_input.replay_temperature(run)
        supply.check([item for share in shares for item in share.items])
        done = set(run.replay(called).complete_steps) if called in run.replays else set()
        todo = [share.without(done) for share in shares if not share.steps <= done]
        # Wrong or damaged weights are named before anything is written.
        models = supply.models(todo or shares[:1])
        loaded, digest = next(models)
        record = environment(device)
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
        )
        writer = ReplayWriter(run.path, manifest.model_copy(update=supply.said(run, called, shares, digest)))
    if certificate is True and engine == "exact" and todo:
        which = {"model_digest": digest, "weight_version": todo[0].version}
        certificate = certify_quick(loaded) | {"environment": record | which}
    if isinstance(certificate, dict):
        writer.write_certificate(certificate)
    left = Counter(item.step for share in todo for item in share.items)
    with _bar(sum(item.tokens for share in todo for item in share.items), progress is True) as bar:
        advance = progress if callable(progress) else bar
        for share, (served, _) in zip(todo, chain([(loaded, digest)], models), strict=False):
            with ExactEngine(served) if engine == "exact" else nullcontext():
                for item in share.items:
                    texts = (item.prompts, item.completions)
                    scores = score(served, *texts, temperature, advance, packed=engine == "exact")
                    writer.put(item.step, _columns(engine, item, scores))
                    left[item.step] -= 1
                    if not left[item.step]:
                        writer.complete(item.step)
    return Path(writer.path)


def _weights(
    run: Run,
    model: str | os.PathLike[str] | None,
    steps: Sequence[int] | None,
    device: str,
    compute: str,
    allow_other: bool,
) -> tuple[Supply, list[Share]]:
    """Where the weights come from, and which steps they serve."""
    first = min(run.manifest.weights, key=lambda w: w.version, default=None)
    if model is None and run.weight_versions:
        return Recorded(run, first, device, compute), recorded_shares(run, first, steps)
    supply = Named(run, model, first, device, compute, allow_other)
    anything = allow_other and bool(steps)
    return supply, given_shares(run, None if anything else supply.version, steps)
