"""The bundled real run as plain columns, parts of it, and how columns become a run again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import timscope.data
from timscope.analysis.check import Report, run_checks
from timscope.data import Manifest, RunWriter, open_run

Array = np.ndarray[Any, Any]
SAMPLE = Path(timscope.data.__file__).parent / "samples" / "smollm2-grpo"
FLOATS = ("rollout_logprob", "old_logprob", "loss_logprob", "entropy")


@dataclass
class Columns:
    """Tokens of some sequences, `number` [N] being the row of each in `rows`; `rows` are columns of `sequences`.

    `steps` spreads the sequences over so many steps. `manifest` holds top-level fields.
    """

    tokens: dict[str, Any]
    number: Array
    rows: dict[str, Any]
    manifest: dict[str, Any] = field(default_factory=dict)
    steps: int = 2
    step_rows: dict[int, dict[str, Any]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.tokens[name]

    def with_tokens(self, **columns: Any) -> Columns:
        """The same with some token columns replaced."""
        return replace(self, tokens={**self.tokens, **columns})

    def with_rows(self, **columns: Any) -> Columns:
        """The same with some columns of `sequences` replaced."""
        return replace(self, rows={**self.rows, **columns})

    def declaring(self, **manifest: Any) -> Columns:
        """The same with further manifest fields."""
        return replace(self, manifest={**self.manifest, **manifest})

    @property
    def starts(self) -> Array:
        """First row of each sequence."""
        return np.flatnonzero(np.append(True, np.diff(self.number) != 0))

    def write(self, path: Path) -> Path:
        """A run on disk."""
        count = int(self.number.max()) + 1
        step_of = np.arange(count) * self.steps // count
        with RunWriter(path, Manifest(**self.manifest), strict=True) as writer:
            for step in range(self.steps):
                use = step_of[self.number] == step
                part = {k: v[use] for k, v in self.tokens.items() if v is not None}
                writer.put("tokens", step, {"sequence": self.number[use], **part})
                which = np.flatnonzero(step_of == step)
                rows = {k: [v[i] for i in which] for k, v in self.rows.items() if v is not None}
                writer.put("sequences", step, {"sequence": which, **rows})
                writer.put("steps", step, self.step_rows.get(step, {"loss": [0.0]}))
                writer.complete(step)
        return path

    def check(self, path: Path) -> Report:
        """Written, opened and checked."""
        with open_run(self.write(path)) as run:
            return run_checks(run)


@cache
def _sample() -> Columns:
    with open_run(SAMPLE) as run:
        t, s = run.tokens(), run.sequences()
        manifest = {k: getattr(run.manifest, k) for k in ("model", "tokenizer", "sampling", "logprobs", "algorithm")}
    key = t["step"].to_numpy().astype(np.int64) * 1000 + t["sequence"].to_numpy()
    number = np.unique(key, return_inverse=True)[1].reshape(-1)
    tokens = {name: t[name].to_numpy().copy() for name in ("position", "token_id", "mask", *FLOATS)}
    rows = {name: s[name].to_list() for name in ("rank", "uid", "group_id", "prompt_ids", "num_tokens", "reward")}
    return Columns(tokens, number, rows, manifest)


def sample() -> Columns:
    """All 9,218 tokens of 512 sequences; columns may be changed."""
    full = _sample()
    return replace(full, tokens={k: v.copy() for k, v in full.tokens.items()}, rows=dict(full.rows))


def resampled(rng: np.random.Generator, tokens: int) -> Columns:
    """Sequences drawn with replacement until they hold `tokens` tokens or just above."""
    full = _sample()
    ends = np.append(full.starts, len(full.number))
    order = rng.integers(0, len(full.starts), tokens)
    total = np.cumsum(np.diff(ends)[order])
    order = order[: int(np.searchsorted(total, tokens)) + 1]
    take = np.concatenate([np.arange(ends[i], ends[i + 1]) for i in order])
    number = np.repeat(np.arange(len(order)), np.diff(ends)[order])
    rows = {k: [v[i] for i in order] for k, v in full.rows.items()}
    rows["uid"] = None  # a drawn copy is another rollout
    return Columns({k: v[take] for k, v in full.tokens.items()}, number, rows, full.manifest)
