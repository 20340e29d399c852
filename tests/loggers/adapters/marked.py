"""Batches in which every number says what it belongs to: a log-prob names the column and the token that it scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from timscope.data import open_run

# What a column says of token t: -(kind + t / 1000), exact enough in float32 to be told apart.
KINDS = {"rollout_logprob": 1, "old_logprob": 2, "ref_logprob": 3, "entropy": -4, "rollout_is_weight": -5}


def said(column: str, ids: Any) -> torch.Tensor:
    """The values of `column` for tokens `ids`."""
    return -(KINDS[column] + torch.as_tensor(ids, dtype=torch.float32) / 1000)


@dataclass
class Sample:
    """One trajectory: token ids, what is in the loss, what the engine sampled (a tool's tokens are not), a reward."""

    prompt: list[int]
    response: list[int]
    mask: list[int]
    sampled: list[int]
    reward: float
    advantage: float

    def column(self, name: str) -> torch.Tensor:
        """A token column of this sample; a rollout log-prob is 0.0 where the engine sampled nothing."""
        values = said(name, self.response)
        return values * torch.tensor(self.sampled) if name == "rollout_logprob" else values


def samples(count: int = 4, seed: int = 0) -> list[Sample]:
    """Trajectories of different lengths, token ids all different; the second has a tool's answer in its middle, the
    third a token that was sampled and then taken out of the loss."""
    draw = np.random.default_rng(seed)
    result, next_id = [], 10
    for row in range(count):
        p, r = int(draw.integers(1, 6)), int(draw.integers(4, 9))
        ids = list(range(next_id, next_id + p + r))
        next_id += p + r
        mask, sampled = [1] * r, [1] * r
        if row % 4 == 1:
            mask[1:3] = sampled[1:3] = [0, 0]
        if row % 4 == 2:
            mask[-1] = 0
        result.append(Sample(ids[:p], ids[p:], mask, sampled, float(row) / 2, float(row) - 1.5))
    return result


def padded(rows: list[Any], width: int, *, left: bool = False, value: float = 0) -> torch.Tensor:
    """Rows (lists or 1-D tensors) as one block (B, width)."""
    block = torch.full((len(rows), width), value, dtype=torch.as_tensor(rows[0]).dtype)
    for i, row in enumerate(rows):
        n = len(row)
        block[i, width - n if left else 0 : width if left else n] = torch.as_tensor(row)
    return block


def check_tokens(path: Path, batch: list[Sample], columns: set[str], *, step: int, from_mask: bool = False) -> None:
    """Every token of `batch` is there once, with what `columns` say of it at its own row and nothing in the others.

    `from_mask`: the framework has no other sign of what was sampled than the mask of the loss.
    """
    with open_run(path) as run:
        assert [p for p in run.problems if not p.startswith("column ")] == []
        table = run.sql(f"SELECT * FROM tokens WHERE step = {step} ORDER BY sequence, position")
    ids = table["token_id"].to_list()
    assert ids == [t for s in batch for t in s.response]
    assert table["position"].to_list() == [len(s.prompt) + i for s in batch for i in range(len(s.response))]
    assert table["mask"].to_list() == [bool(m) for s in batch for m in s.mask]
    known = [x for s in batch for x in (s.mask if from_mask else s.sampled)]
    for name in KINDS:
        there = [name in columns and (name != "rollout_logprob" or bool(x)) for x in known]
        expected = [float(said(name, token)) if has else None for token, has in zip(ids, there, strict=True)]
        assert table[name].to_list() == expected, name


def boom(*_args: Any, **_kwargs: Any) -> Any:
    """Stands in for anything that fails inside a hook."""
    raise RuntimeError("boom")


def never(what: str) -> Callable[..., Any]:
    """Must not be called."""

    def called(*_args: Any, **_kwargs: Any) -> Any:
        raise AssertionError(f"{what} was called")

    return called
