"""Part of rule 8: do r and t belong to the same tokens at all?

Two columns of different texts (rows of a batch in another order, other ids, a trainer that scores each token with a
context that has already seen it) agree hardly better than tokens paired at random, and no lag repairs that. |d| over
that of random pairs is 0.04 on the bundled run (0.13 in its worst sequence). With its rows in another order it is 0.87,
not 1, for answers resemble each other; two engines with a mean |d| of 1.9 nats reach 0.8, too. Those have E[w] = 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from timscope.analysis.check.lag_scan import CAP, TELLING, LagTable
from timscope.analysis.check.report import ROWS
from timscope.analysis.check.semantics import Semantics
from timscope.analysis.check.thinned import Thinned
from timscope.analysis.check.validity import capped_too_large

# Alone; with weights that no valid log-prob has; of one sequence in a run whose others are SOUND.
UNRELATED, DOUBTFUL, FOREIGN = 0.95, 0.7, 0.5
# Sequences that must agree before a few foreign ones are believed, and how far below them the sound ones must be.
MIN_TOKENS, MIN_TELLING, MIN_ROWS, MIN_SHARE, SOUND = 100, 8, 3, 0.01, 0.175
MIN_DISTANCE = 0.5  # nats: nearly certain tokens are alike whatever text they are of
_SAMPLE = 200_000


@dataclass(frozen=True)
class Relation:
    """`ratio`: mean |d| (capped at 3 nats, tokens with r < -0.1) over that of random pairs; None where there are too
    few tokens. `unrelated`: the two columns have nothing to do with each other. `foreign`: sequences, as (step,
    sequence), that fit hardly better than random in a run that fits."""

    ratio: float | None
    unrelated: bool = False
    testable: int = 0
    foreign: tuple[tuple[int, int], ...] = ()
    rows: tuple[dict[str, float | int], ...] = ()

    @property
    def share(self) -> float:
        """Foreign sequences over testable ones."""
        return len(self.foreign) / max(self.testable, 1)


def relation(table: LagTable, sample: Thinned, s: Semantics) -> Relation:
    """Both tests, from sums per sequence and a random pairing of the sample."""
    r, t, _, _ = sample.columns()
    tells = np.flatnonzero(r < TELLING)[:_SAMPLE]
    total = float(table.telling.sum())
    if len(tells) < MIN_TOKENS or not total:
        return Relation(None)
    other = t[np.random.default_rng(0).permutation(tells)]
    random = float(np.minimum(np.abs(r[tells] - other), CAP).mean())
    if random < MIN_DISTANCE:
        return Relation(None)
    ratio = float(table.cost[0].sum()) / total / random
    unrelated = ratio > (DOUBTFUL if capped_too_large(s) else UNRELATED)
    testable = table.telling >= MIN_TELLING
    with np.errstate(divide="ignore", invalid="ignore"):
        each = table.cost[0] / table.telling / random
    if not testable.any() or float(np.quantile(each[testable], 0.1)) > SOUND:
        return Relation(ratio, unrelated, int(testable.sum()))
    out = _foreign(table, testable, each)
    keys = tuple(zip(table.step[out].tolist(), table.sequence[out].tolist(), strict=True))
    worst = out[np.argsort(-each[out])][:ROWS]
    rows = [
        {"step": int(table.step[i]), "sequence": int(table.sequence[i]), "over_random_pairs": float(each[i])}
        for i in worst
    ]
    return Relation(ratio, unrelated, int(testable.sum()), keys, tuple(rows))


def _foreign(table: LagTable, testable: npt.NDArray[np.bool_], each: npt.NDArray[np.float64]) -> npt.NDArray[np.intp]:
    """Rows of the table that fit hardly better than random, at every lag; none where too few to be believed."""
    best = np.min(list(table.cost.values()), axis=0)
    shifted = best < table.cost[0] / 3  # rule 6 has these
    out = np.flatnonzero(testable & (each > FOREIGN) & ~shifted)
    return out if len(out) >= max(MIN_ROWS, MIN_SHARE * testable.sum()) else out[:0]
