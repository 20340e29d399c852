"""Numbers that are no measurements: zeros as filling, or a copy of another column.

Frameworks fill "old" log-probs with zeros where their loss does not need them, and some use the rollout's log-probs in
their place. Both are kept as they are; from the note a reader knows that no mismatch may be computed from them. Only
where nothing can have been sampled is an exact zero taken for what it is: missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from timscope.data.importers.base import Findings, Part
from timscope.data.importers.columns import Floats

_HANDFUL = 4  # tokens: a policy may be that sure for once


def scored(values: Floats, sampled: NDArray[np.bool_]) -> Floats:
    """Log-probs (n,) with exact zeros outside `sampled` (n,) as missing: there 0.0 is what frameworks fill in."""
    filled = ~sampled & (np.ma.getdata(values) == 0.0)
    if not filled.any():
        return values
    return np.ma.array(np.ma.getdata(values), mask=np.ma.getmaskarray(values) | filled)


@dataclass
class _Tally:
    """Tokens of one step, of those with a value."""

    step: int
    old: int = 0
    old_zero: int = 0
    rollout: int = 0
    rollout_zero: int = 0
    both: int = 0
    equal: int = 0
    unfilled: int = 0  # sequences whose old log-probs are all 0.0 where the rollout's are not
    first: int | None = None

    def add(self, tokens: dict[str, Any]) -> None:
        old, rollout = tokens.get("old_logprob"), tokens.get("rollout_logprob")
        for name, values in (("old", old), ("rollout", rollout)):
            if values is not None:
                there = ~np.ma.getmaskarray(values)
                zero = (np.ma.getdata(values) == 0.0) & there
                setattr(self, name, getattr(self, name) + int(np.count_nonzero(there)))
                setattr(self, f"{name}_zero", getattr(self, f"{name}_zero") + int(np.count_nonzero(zero)))
        if old is not None and rollout is not None:
            there = ~(np.ma.getmaskarray(old) | np.ma.getmaskarray(rollout))
            # As stored: the run's columns are float32.
            with np.errstate(over="ignore"):
                a, b = (np.ma.getdata(v).astype(np.float32) for v in (old, rollout))
            self.both += int(np.count_nonzero(there))
            self.equal += int(np.count_nonzero((a == b) & there))
            self._add_sequences(np.asarray(tokens["sequence"]), (a == 0.0) & (b != 0.0) & there, there)

    def _add_sequences(self, sequence: NDArray[Any], filled: NDArray[np.bool_], there: NDArray[np.bool_]) -> None:
        """A sequence (whole within a part) counts where all of its tokens are filled and they are no handful."""
        names, row = np.unique(sequence, return_inverse=True)
        tokens = np.bincount(row, there, minlength=len(names))
        whole = (tokens >= _HANDFUL) & (np.bincount(row, filled, minlength=len(names)) == tokens)
        self.unfilled += int(np.count_nonzero(whole))
        if self.first is None and whole.any():
            self.first = int(names[whole][0])


def watched(parts: Iterable[Part], findings: Findings) -> Iterator[Part]:
    """The parts, unchanged; notes once a step "zero-filled-old", "zero-filled-rollout" and "old-copies-rollout".

    A column is zero-filled where every value of the step is exactly 0.0, copied where every pair is equal. Old
    log-probs are also zero-filled where this is so for single sequences and the rollout's are not 0.0 there.
    """
    tally: _Tally | None = None
    for part in parts:
        if tally is not None and tally.step != part.step:
            _note(tally, findings)
            tally = None
        if "tokens" in part.tables:
            tally = tally or _Tally(part.step)
            tally.add(part.tables["tokens"])
        yield part
    if tally is not None:
        _note(tally, findings)


def _note(tally: _Tally, findings: Findings) -> None:
    old_empty = 0 < tally.old == tally.old_zero
    rollout_empty = 0 < tally.rollout == tally.rollout_zero
    if old_empty:
        findings.note(
            "zero-filled-old", "old_logprob is exactly 0.0 everywhere in a step: not a measurement",
            step=tally.step, tokens=tally.old,
        )  # fmt: skip
    elif tally.unfilled:
        findings.note(
            "zero-filled-old", "old_logprob is exactly 0.0 over whole sequences: not a measurement of these",
            count=tally.unfilled, step=tally.step, sequence=tally.first,
        )  # fmt: skip
    if rollout_empty:
        findings.note(
            "zero-filled-rollout", "rollout_logprob is exactly 0.0 everywhere in a step: not a measurement",
            step=tally.step, tokens=tally.rollout,
        )  # fmt: skip
    if 0 < tally.both == tally.equal and not old_empty:
        findings.note(
            "old-copies-rollout", "old_logprob equals rollout_logprob bit for bit in a step: a copy, or one engine",
            step=tally.step, tokens=tally.both,
        )  # fmt: skip
