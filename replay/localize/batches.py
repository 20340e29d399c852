"""How sequences become forwards: one sequence alone, or padded as the trainer laid them out.

The rows that are compared are those of the real tokens but each sequence's last one, which predicts nothing; they come
in the order of sequences and positions whatever the padding, so two witnesses align row by row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from timscope.replay.localize.texts import Text


@dataclass(frozen=True)
class Batch:
    """One forward: ids and mask [B, L] (mask None: no padding), positions [B, L] or None: 0, 1, 2 ... in every row.

    `rows` are the compared rows of the flattened [B * L], `scored` those that predict a response token in `targets`.
    """

    ids: Tensor
    mask: Tensor | None
    positions: Tensor | None
    rows: Tensor
    scored: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Padding:
    """The trainer's layout: `size` sequences a forward; `shifted`: position ids count the padding too, as TRL's do."""

    size: int
    shifted: bool


def alone(texts: Sequence[Text], device: torch.device) -> Iterator[Batch]:
    """One sequence a forward."""
    for text in texts:
        ids = torch.tensor([text.ids[:-1]], device=device)
        length, start = ids.shape[1], len(text.prompt) - 1
        rows = torch.arange(length, device=device)
        positions = rows[None]
        yield Batch(ids, None, positions, rows, rows[start:], torch.tensor(text.completion, device=device))


def padded(texts: Sequence[Text], padding: Padding, device: torch.device) -> Iterator[Batch]:
    """Groups of `padding.size` sequences with their padding on both sides."""
    for begin in range(0, len(texts), padding.size):
        group = texts[begin : begin + padding.size]
        ids: list[list[int]] = []
        mask: list[list[int]] = []
        rows: list[int] = []
        scored: list[int] = []
        targets: list[int] = []
        width = max(text.width for text in group)
        for number, text in enumerate(group):
            right = width - text.left - len(text.ids)
            ids.append([0] * text.left + text.ids + [0] * right)
            mask.append([0] * text.left + [1] * len(text.ids) + [0] * right)
            first, end = number * width + text.left, number * width + text.left + len(text.ids) - 1
            rows += range(first, end)
            scored += range(first + len(text.prompt) - 1, end)
            targets += text.completion
        real = torch.tensor(mask, device=device)
        yield Batch(
            ids=torch.tensor(ids, device=device),
            mask=real,
            positions=None if padding.shifted else (real.cumsum(-1) - 1).clamp(min=0),
            rows=torch.tensor(rows, device=device),
            scored=torch.tensor(scored, device=device),
            targets=torch.tensor(targets, device=device),
        )
