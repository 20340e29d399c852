"""What single log-prob values give away: not a number, a placeholder, or a narrower type than the column's."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from timscope.analysis.check.chance import accident, neighbours
from timscope.analysis.check.chunks import FLOATS, Bools, Chunk
from timscope.analysis.check.pairs import left_out
from timscope.analysis.check.plan import Plan, sentinels
from timscope.analysis.check.structure import Violations
from timscope.analysis.check.widths import Widths, widest
from timscope.analysis.columns import LOSS, ROLLOUT, TRAINER


@dataclass
class Values:
    """Collects, by column: `missing` and `wrong[column, kind]` (nan, inf, -inf) in the loss, `outside` the same outside
    it, placeholders by (column, value, place), exact zeros of r in the loss, how wide the values are, and by (column,
    filler) how many tokens lie `around` a filler."""

    plan: Plan
    missing: Counter[str] = field(default_factory=Counter)
    wrong: dict[tuple[str, str], Violations] = field(default_factory=dict)
    outside: Counter[tuple[str, str]] = field(default_factory=Counter)
    there: Counter[str] = field(default_factory=Counter)
    placeholders: dict[tuple[str, float, str], Violations] = field(default_factory=dict)
    zeros: int = 0
    around: Counter[tuple[str, float]] = field(default_factory=Counter)
    widths: dict[str, Widths] = field(default_factory=dict)

    def add(self, chunk: Chunk) -> None:
        """Look at one chunk."""
        for column in FLOATS:
            self._finite(chunk, column)
        for column in (ROLLOUT, TRAINER, LOSS):
            if chunk.null[column] is not True:
                self.widths.setdefault(column, Widths()).add(chunk.values[column][chunk.mask])
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

    def _placeholders(self, chunk: Chunk, left: str, right: str | None) -> None:
        found = sentinels(chunk, self.plan, left, right)
        if self.plan.fake_steps:
            found = found & ~np.isin(chunk.step, list(self.plan.fake_steps))
        if self.plan.left_out and found.any():
            found = found & ~left_out(chunk, self.plan)
        if right is not None and chunk.null[right] is not True:
            for value in self.plan.fillers:
                self.around[left, float(np.float32(value))] += neighbours(chunk, self.plan, left, right, value)
        if not found.any():
            return
        rows = np.flatnonzero(found)
        places = _places(chunk, found)[rows]
        values = chunk.values[left][rows]
        for value in np.unique(values):
            for place in np.unique(places[values == value]):
                key = (left, float(value), str(place))
                self.placeholders.setdefault(key, Violations()).add(chunk, rows[(values == value) & (places == place)])

    def chance(self, column: str, value: float) -> bool:
        """Whether a filler's tokens are no more than there would be without any fault."""
        if (column, value) not in self.around:
            return False
        count = sum(v.count for (c, x, _), v in self.placeholders.items() if (c, x) == (column, value))
        width = widest(self.widths[column])
        return accident(count, self.around[column, value], value, width and width[0])


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
