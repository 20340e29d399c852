"""Sums per sequence: all that the rules about units, temperature and truncation need, in a few numbers a sequence.

Every figure that follows is a ratio of such sums, and its standard error is clustered by sequence, because tokens of
one sequence share their context and their faults.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from timscope.analysis.check.pairs import Floats, Pairs

MAX_WEIGHT = 4.0
# Columns of the table; r, t, H are centred on nothing: the models of the rules go through 0.
ALL = ("n", "abs", "excess", "capped", "r", "t", "rr", "rt", "tt")
FIRST = ("n1", "rr1", "rt1", "tt1", "rH1", "tH1", "HH1")
GROUP = ("seen_n", "seen_y")


@dataclass
class Table:
    """One row a sequence: `step`, `sequence`, and the sums of ALL (every compared token: counts, |d|, w - 1,
    min(w, 4) - 1, r, t and products), FIRST (tokens whose id is new in the sequence and whose entropy is known) and
    GROUP (repeated tokens)."""

    columns: dict[str, Floats]
    step: Floats
    sequence: Floats

    def __getitem__(self, name: str) -> Floats:
        return self.columns[name]

    def total(self, name: str) -> float:
        """Sum over sequences."""
        return float(self.columns[name].sum())

    @property
    def sequences(self) -> int:
        """S."""
        return len(self.step)


@dataclass
class Sums:
    """Collects the table chunk by chunk."""

    _parts: list[dict[str, Floats]] = field(default_factory=list)

    def add(self, pairs: Pairs) -> None:
        """Sums of one chunk."""
        if not len(pairs):
            return
        chunk, sums = pairs.chunk, pairs.sums
        first_rows = chunk.starts[pairs.which]
        r, t, y = pairs.r, pairs.t, pairs.y
        with np.errstate(over="ignore"):
            excess = np.expm1(-y)
        part = {
            "step": chunk.step[first_rows].astype(np.float64),
            "sequence": chunk.sequence[first_rows].astype(np.float64),
            "n": pairs.lengths.astype(np.float64),
            "abs": sums(np.abs(y)),
            "excess": sums(excess),
            "capped": sums(np.minimum(excess, MAX_WEIGHT - 1)),
            "r": sums(r),
            "t": sums(t),
            "rr": sums(r * r),
            "rt": sums(r * t),
            "tt": sums(t * t),
            "seen_n": sums(pairs.seen),
            "seen_y": sums(y * pairs.seen),
        }
        # Repeated tokens are left to the rule about penalties: a penalty on them looks like a temperature.
        known = np.isfinite(pairs.H)
        keep = known & ~pairs.seen
        u = keep.astype(np.float64)
        h = np.where(known, pairs.H, 0.0) * u
        ru, tu = r * u, t * u
        part |= {
            "n1": sums(u),
            "rr1": sums(r * ru),
            "rt1": sums(r * tu),
            "tt1": sums(t * tu),
            "rH1": sums(r * h),
            "tH1": sums(t * h),
            "HH1": sums(h * h),
        }
        self._parts.append(part)

    def table(self) -> Table:
        """Everything so far."""
        names = ("step", "sequence", *ALL, *FIRST, *GROUP)
        joined = {name: np.concatenate([p[name] for p in self._parts] or [np.zeros(0)]) for name in names}
        return Table(
            {k: v for k, v in joined.items() if k not in ("step", "sequence")}, joined["step"], joined["sequence"]
        )
