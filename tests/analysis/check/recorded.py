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
    names = ("rank", "uid", "group_id", "prompt_ids", "num_tokens", "reward", "advantage")
    return Columns(tokens, number, {name: s[name].to_list() for name in names}, manifest)


@cache
def _steps() -> tuple[Array, list[dict[str, Any]]]:
    """The step of each sequence of the run, and what was logged with each step."""
    with open_run(SAMPLE) as run:
        of_sequence, table = run.sequences()["step"].to_numpy(), run.steps()
    return of_sequence, [{k: [v] for k, v in row.items() if k != "step"} for row in table.iter_rows(named=True)]


def sample() -> Columns:
    """All 9,218 tokens of 512 sequences; columns may be changed."""
    full = _sample()
    return replace(full, tokens={k: v.copy() for k, v in full.tokens.items()}, rows=dict(full.rows))


def selected(full: Columns, order: Array) -> Columns:
    """Some of its sequences, in this order."""
    ends = np.append(full.starts, len(full.number))
    take = np.concatenate([np.arange(ends[i], ends[i + 1]) for i in order])
    number = np.repeat(np.arange(len(order)), np.diff(ends)[order])
    rows = {k: v and [v[i] for i in order] for k, v in full.rows.items()}
    return replace(full, tokens={k: v[take] for k, v in full.tokens.items()}, number=number, rows=rows)


def whole_steps(rng: np.random.Generator, count: int) -> Columns:
    """So many recorded steps in their order, with all that was logged with them: 16 sequences each."""
    of_sequence, logged = _steps()
    chosen = np.sort(rng.choice(np.unique(of_sequence), count, replace=False))
    part = selected(_sample(), np.flatnonzero(np.isin(of_sequence, chosen)))
    first = int(of_sequence.min())
    return replace(part, steps=count, step_rows={i: logged[s - first] for i, s in enumerate(chosen)})


def resampled(rng: np.random.Generator, tokens: int) -> Columns:
    """Sequences drawn with replacement until they hold `tokens` tokens or just above."""
    full = _sample()
    ends = np.append(full.starts, len(full.number))
    order = rng.integers(0, len(full.starts), tokens)
    total = np.cumsum(np.diff(ends)[order])
    part = selected(full, order[: int(np.searchsorted(total, tokens)) + 1])
    # A drawn copy is another rollout, and an advantage belongs to a whole group.
    return part.with_rows(uid=None, advantage=None)
