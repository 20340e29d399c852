"""Running the tiny TRL job with and without the hook, and looking at what it recorded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import tiny_grpo
import torch
from transformers import TrainerCallback

from timscope.data import Run
from timscope.loggers import attach


class Versions(TrainerCallback):
    """Keeps a copy of the weights of every version, to score against."""

    def __init__(self) -> None:
        self.states: dict[int, dict[str, Any]] = {}

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.states[state.global_step] = {k: v.detach().clone() for k, v in model.state_dict().items()}


def fingerprint(model: Any) -> str:
    sha = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        sha.update(name.encode() + tensor.detach().numpy().tobytes())
    return sha.hexdigest()


def train(
    folder: Path, hook: bool, change: Callable[[Any], object] = lambda trainer: None, **job: Any
) -> tuple[Any, Versions]:
    """Train with deterministic algorithms; `change` may alter the trainer before it starts."""
    torch.use_deterministic_algorithms(True)
    try:
        trainer, versions = tiny_grpo.trainer(folder / "out", **job), Versions()
        trainer.add_callback(versions)
        change(trainer)
        if hook:
            attach(trainer, folder / "run", model_source="tiny", strict=True)
        trainer.train()
        return trainer, versions
    finally:
        torch.use_deterministic_algorithms(False)


def score(state: dict[str, Any], ids: list[int], start: int, temperature: float) -> Any:
    model = tiny_grpo.model()
    model.load_state_dict(state)
    with torch.no_grad():
        logp = (model(torch.tensor([ids])).logits[0] / temperature).log_softmax(-1)
    return logp[torch.arange(start - 1, len(ids) - 1), torch.tensor(ids[start:])].numpy()


def rows(run: Run) -> Any:
    """(sequence row, its tokens) of every recorded sequence."""
    tokens = run.tokens()
    for row in run.sequences().iter_rows(named=True):
        mine = (pl.col("step") == row["step"]) & (pl.col("sequence") == row["sequence"])
        yield row, tokens.filter(mine).sort("position")
