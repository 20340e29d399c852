"""From a framework's batch to the columns of `Recorder`: ragged rows, and missing where a framework wrote filler.

Frameworks pad with 0.0, which is a legal log-prob. Only tokens that the engine really sampled keep a rollout log-prob;
the rest is masked, which the recorder stores as NULL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from timscope.loggers.arrays import Array, is_tensor, numbers


def ragged(values: Any) -> list[Array]:
    """One numpy array a row of a jagged nested tensor, a padded tensor or a list of rows."""
    rows = values.unbind() if getattr(values, "is_nested", False) else values
    return [numbers(row) for row in rows]


def gathered(rows: Sequence[Any]) -> list[Array]:
    """One numpy array a row of a list of 1-D tensors on a device, moved to the host in one transfer."""
    if not rows or not is_tensor(rows[0]):
        return [numbers(row) for row in rows]
    import torch

    ends = np.cumsum([len(row) for row in rows])
    return np.split(numbers(torch.cat(list(rows))), ends[:-1])


def selected(block: Any, keep: Array) -> list[Array]:
    """The values of a padded block (B, C) where `keep` (B, C) is true, one array a row."""
    return [row[chosen] for row, chosen in zip(numbers(block), keep, strict=True)]


def only(rows: Sequence[Array], measured: Sequence[Array]) -> list[Array]:
    """`rows` with everything masked that is not `measured`. ValueError where the lengths differ."""
    for index, (row, there) in enumerate(zip(rows, measured, strict=True)):
        if row.shape != there.shape:
            raise ValueError(f"row {index} has {row.size} values for {there.size} tokens")
    return [np.ma.array(r.astype(np.float64), mask=~m.astype(bool)) for r, m in zip(rows, measured, strict=True)]


def sampled(rows: Sequence[Array], masks: Sequence[Array]) -> list[Array]:
    """Rollout log-probs of frameworks that give tokens of tools and environments 0.0 and no mask of their own: outside
    the loss 0.0 is filler, in the loss it is a log-prob."""
    return only(rows, [mask.astype(bool) | (row != 0) for row, mask in zip(rows, masks, strict=True)])


def advantages(rows: Sequence[Array], masks: Sequence[Array]) -> Any:
    """One number a sequence where the advantage is the same on all its tokens in the loss, else one a token.

    Outside the mask frameworks leave 0 or anything, so it counts as missing there. A sequence without a token in the
    loss has no advantage (None).
    """
    inside = [row[mask.astype(bool)] for row, mask in zip(rows, masks, strict=True)]
    if all(np.unique(values).size <= 1 for values in inside):  # NaN counts as equal to NaN
        return [float(values[0]) if values.size else None for values in inside]
    return only(rows, masks)


def totals(rows: Sequence[Array]) -> list[float]:
    """The sum of each row, in float64: a reward that sits on the last token."""
    return [float(row.astype(np.float64).sum()) for row in rows]


def one_version(low: Sequence[Any], high: Sequence[Any]) -> tuple[list[int | None], int]:
    """The weight version of each sequence, and how many have none because it changed on the way.

    `low`, `high`: the versions under which generation began and ended, None where unknown.
    """
    pairs = [(None if a is None else int(a), None if b is None else int(b)) for a, b in zip(low, high, strict=True)]
    mixed = sum(a is not None and b is not None and a != b for a, b in pairs)
    return [a if a == b else None for a, b in pairs], mixed


def counted(names: Sequence[str]) -> list[str]:
    """Names made unique by how often each came before: a, b, a -> a_0, b_0, a_1."""
    seen: dict[str, int] = {}
    result = []
    for name in names:
        result.append(f"{name}_{seen.get(name, 0)}")
        seen[name] = seen.get(name, 0) + 1
    return result
