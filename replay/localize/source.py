"""What a localisation takes from a run: one step's sequences, the weights that sampled them, a recorded target."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from timscope.data import BadInput, Run
from timscope.replay.localize.texts import Text
from timscope.replay.models import dtype_name
from timscope.replay.named_model import Named
from timscope.replay.replay_input import StepInput
from timscope.replay.supply import Recorded, Supply
from timscope.replay.versions import Share, given_shares, recorded_shares

_PADS = "SELECT sequence, pad_left, pad_right FROM sequences WHERE step = $step"
_TARGET = "SELECT sequence, position, {column} AS target FROM witnesses WHERE step = $step AND coalesce(mask, true)"


@dataclass(frozen=True)
class Material:
    """The model, the texts and where they came from; `left_out`: sequences of the step that were not taken."""

    model: Any
    digest: str
    texts: list[Text]
    left_out: int

    @property
    def sequence(self) -> npt.NDArray[np.int64]:
        """Sequence of every response token [N]."""
        return np.repeat([t.sequence for t in self.texts], [len(t.completion) for t in self.texts]).astype(np.int64)

    @property
    def position(self) -> npt.NDArray[np.int64]:
        """Absolute position of every response token [N]."""
        spans = [np.arange(len(t.prompt), len(t.prompt) + len(t.completion)) for t in self.texts]
        return np.concatenate(spans).astype(np.int64)

    @property
    def token(self) -> npt.NDArray[np.int64]:
        """Id of every response token [N]."""
        return np.array([token for t in self.texts for token in t.completion], np.int64)


def read_material(
    run: Run, step: int, sequences: int, model: str | os.PathLike[str] | None, device: str, allow_other: bool
) -> Material:
    """The first `sequences` sequences of a step that have a response, with the weights that sampled them.

    Where several versions sampled the step, the one with most tokens is taken. BadInput where the run or its weights
    cannot serve.
    """
    if sequences < 1:
        raise BadInput(f"--sequences {sequences} leaves nothing to compare: take at least 1")
    supply, shares = _weights(run, model, step, device, allow_other)
    share = max(shares, key=lambda share: sum(item.tokens for item in share.items))
    supply.check(share.items)
    item = share.items[0]
    texts = _texts(run, item)[:sequences]
    if not texts:
        raise BadInput(f"step {step} of {run.path} has no response token: take another step")
    loaded, digest = next(iter(supply.models([share])))
    total = sum(len(s.items[0].sequences) for s in shares)
    return Material(loaded, digest, texts, total - len(texts))


def _weights(
    run: Run, model: str | os.PathLike[str] | None, step: int, device: str, allow_other: bool
) -> tuple[Supply, list[Share]]:
    first = min(run.manifest.weights, key=lambda w: w.version, default=None)
    # In their stored dtype: each witness rounds them for itself.
    stored = dtype_name(run.manifest.model.dtype or run.manifest.trainer.dtype or "float32")
    if model is None and run.weight_versions:
        return Recorded(run, first, device, stored), recorded_shares(run, first, [step])
    supply = Named(run, model, first, device, stored, allow_other)
    return supply, given_shares(run, None if allow_other else supply.version, [step])


def _texts(run: Run, item: StepInput) -> list[Text]:
    pads = {row[0]: row[1:] for row in run.sql(_PADS, params={"step": item.step}).iter_rows()}
    longest = max(map(len, item.prompts), default=0)
    widest = max(map(len, item.completions), default=0)
    found = []
    for sequence, prompt, completion in zip(item.sequences, item.prompts, item.completions, strict=True):
        left, right = pads.get(sequence, (None, None))
        left = longest - len(prompt) if left is None else left
        right = widest - len(completion) if right is None else right
        if completion:
            found.append(Text(sequence, prompt, completion, left, right))
    return found


def recorded(run: Run, step: int, column: str, texts: Sequence[Text]) -> npt.NDArray[np.float32]:
    """A recorded log-prob column of these texts' response tokens [N]; NaN outside the loss or where it is missing."""
    frame = run.sql(_TARGET.format(column=column), params={"step": step})
    known = {(s, p): value for s, p, value in frame.iter_rows() if value is not None}
    nan = float("nan")
    values = [
        known.get((t.sequence, position), nan)
        for t in texts
        for position in range(len(t.prompt), len(t.prompt) + len(t.completion))
    ]
    return np.array(values, np.float32)
