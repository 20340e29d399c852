"""What single log-prob values give away: not a number, a placeholder, or a narrower type than the column's."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from timscope.analysis.check.chunks import FLOATS, Bools, Chunk
from timscope.analysis.check.pairs import left_out
from timscope.analysis.check.plan import Plan, sentinels
from timscope.analysis.check.structure import Violations
from timscope.analysis.columns import LOSS, ROLLOUT, TRAINER

# Smaller values of a float32 log-softmax lie on the lattice of their logits (2^-19 to 2^-20) and look rounded.
LARGE_ENOUGH = 2.0**-7
DECIMALS = (1, 2, 3, 4, 5)
_SAMPLE = 16_384  # values a chunk and column


@dataclass
class Widths:
    """Of one column: values looked at, how many bf16 and fp16 hold exactly, how many have so few decimals, sum |x|."""

    n: int = 0
    bf16: int = 0
    fp16: int = 0
    total: float = 0.0
    decimal: Counter[int] = field(default_factory=Counter)


@dataclass
class Values:
    """Collects, by column: `missing` and `wrong[column, kind]` (nan, inf, -inf) in the loss, `outside` the same outside
    it, placeholders by (column, value, place), exact zeros of r in the loss, and how wide the values are."""

    plan: Plan
    missing: Counter[str] = field(default_factory=Counter)
    wrong: dict[tuple[str, str], Violations] = field(default_factory=dict)
    outside: Counter[tuple[str, str]] = field(default_factory=Counter)
    there: Counter[str] = field(default_factory=Counter)
    placeholders: dict[tuple[str, float, str], Violations] = field(default_factory=dict)
    zeros: int = 0
    widths: dict[str, Widths] = field(default_factory=dict)

    def add(self, chunk: Chunk) -> None:
        """Look at one chunk."""
        for column in FLOATS:
            self._finite(chunk, column)
        for column in (ROLLOUT, TRAINER, LOSS):
            if chunk.null[column] is not True:
                self._width(chunk.values[column][chunk.mask], self.widths.setdefault(column, Widths()))
        self.zeros += int((chunk.mask & (chunk.values[ROLLOUT] == 0.0)).sum())
        right = self.plan.trainer
        for left, other in ((ROLLOUT, right), (right, ROLLOUT)):
            if left is not None and chunk.null[left] is not True:
                self._placeholders(chunk, left, other)

    def _finite(self, chunk: Chunk, column: str) -> None:
        null = chunk.null[column]
        if null is True:
            self.missing[column] += int(chunk.mask.sum())
            return
        x = chunk.values[column]
        finite = np.isfinite(x)
        if null is not None:
            self.missing[column] += int((null & chunk.mask).sum())
            finite |= null
        self.there[column] += chunk.rows - int(np.sum(null)) if null is not None else chunk.rows
        if finite.all():
            return
        for kind, is_kind in (("nan", np.isnan(x)), ("inf", np.isposinf(x)), ("-inf", np.isneginf(x))):
            there = is_kind & ~finite
            if (there & chunk.mask).any():
                self.wrong.setdefault((column, kind), Violations()).add(chunk, there & chunk.mask)
            self.outside[column, kind] += int((there & ~chunk.mask).sum())

    @staticmethod
    def _width(x: npt.NDArray[np.float32], widths: Widths) -> None:
        """An even sample is enough for a share of 99 %."""
        x = x[:: max(1, len(x) // _SAMPLE)]
        with np.errstate(invalid="ignore", over="ignore"):
            x = x[(np.abs(x) > LARGE_ENOUGH) & np.isfinite(x)]
            widths.n += len(x)
            widths.bf16 += int(((x.view(np.uint32) & 0xFFFF) == 0).sum())
            widths.fp16 += int((x.astype(np.float16).astype(np.float32) == x).sum())
        wide = x.astype(np.float64)
        widths.total += float(np.abs(wide).sum())
        for digits in DECIMALS:
            scaled = wide * 10.0**digits
            # Half a unit in the last place of a float32 is what writing the decimals and reading them back leaves.
            near = np.abs(scaled - np.rint(scaled)) <= np.abs(scaled) * 2.0**-24 + 1e-12
            widths.decimal[digits] += int(near.sum())

    def _placeholders(self, chunk: Chunk, left: str, right: str | None) -> None:
        found = sentinels(chunk, self.plan, left, right)
        if self.plan.fake_steps:
            found = found & ~np.isin(chunk.step, list(self.plan.fake_steps))
        if self.plan.left_out and found.any():
            found = found & ~left_out(chunk, self.plan)
        if not found.any():
            return
        rows = np.flatnonzero(found)
        places = _places(chunk, found)[rows]
        values = chunk.values[left][rows]
        for value in np.unique(values):
            for place in np.unique(places[values == value]):
                key = (left, float(value), str(place))
                self.placeholders.setdefault(key, Violations()).add(chunk, rows[(values == value) & (places == place)])


def _places(chunk: Chunk, found: Bools) -> npt.NDArray[np.str_]:
    """Where in its sequence each token stands: outside the loss, last token, tail, turn start, or inside; [N]."""
    n = chunk.rows
    first = np.zeros(n, bool)
    first[chunk.starts] = True
    after = np.append(first[1:], True)  # the last token of its sequence
    # A tail reaches to the end of its sequence: count of clean tokens from here to there is 0.
    clean = np.cumsum((~found)[::-1])[::-1]
    beyond = np.append(clean[1:], 0)
    ends = np.append(chunk.starts[1:], n) - 1
    tail = clean == chunk.per_token(beyond[ends])
    turn = first | np.append(True, ~chunk.mask[:-1])
    alone = after & ~np.append(False, (found & ~after)[:-1])
    return np.select(
        [~chunk.mask, alone, tail, turn], ["outside the loss", "last token", "tail", "turn start"], "inside"
    )


def widest(widths: Widths) -> tuple[str, float, dict[str, Any]] | None:
    """The narrow type that holds more than 99 % of a column's values, with its rounding error as a share of the value
    (or in nats for decimals), or None."""
    if widths.n <= 200:
        return None
    for name, count, floor in (("bf16", widths.bf16, 2.0**-9), ("fp16", widths.fp16, 2.0**-12)):
        if count > 0.99 * widths.n:
            return name, floor * widths.total / widths.n, {"share": count / widths.n, "relative_floor": floor}
    for digits in DECIMALS:
        if widths.decimal[digits] > 0.99 * widths.n:
            floor = 0.5 * 10.0**-digits
            return f"{digits}-decimal", floor, {"share": widths.decimal[digits] / widths.n}
    return None
