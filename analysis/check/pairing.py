"""Rules 6 and 7: r belongs to another token than t, everywhere (a lag) or from some token on (an insertion).

A sequence counts as shifted where another lag fits more than 3 times better than none. Real data has a wide margin: on
the bundled run no sequence with 8 telling tokens reaches 0.3, none split in two pieces of 5 reaches a gain of 1.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from timscope.analysis.check.lag_scan import LAGS, PIECE, LagTable
from timscope.analysis.check.report import ROWS, Rule

MIN_GAIN, MIN_TELLING, MOST = 3.0, 8, 0.9
# Sequences that must agree before a fault of single rows is believed.
MIN_ROWS, MIN_SHARE = 3, 0.01
# A second piece must save this much in all, nats.
MIN_SAVED = 3.0


def _lags(table: LagTable) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Best lag and gain L(0) / L(best) of each sequence; no telling token gives gain 1."""
    cost = np.stack([table.cost[k] for k in LAGS])
    best = cost.argmin(0)
    lowest = np.take_along_axis(cost, best[None], 0)[0]
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = np.where(table.cost[0] > 0, table.cost[0] / lowest, 1.0)
    return np.array(LAGS)[best], gain


def off_by_one(table: LagTable, mask: dict[str, Any] | None, split: int) -> tuple[Rule, int, set[tuple[int, int]]]:
    """Rule 6, the lag that repairs the run (0 for none), and the sequences that no common lag repairs.

    `mask`: what the shift test of the loss mask found, None where it could not be made. `split`: how many sequences
    rule 7 names or named; where they are more, single shifted ones are insertions near a start.
    """
    name = "off-by-one"
    testable = table.telling >= MIN_TELLING
    number = int(testable.sum())
    if mask and mask["shifted"]:
        said = f"the loss mask is off by {mask['lag']:+d} against {mask['against']}"
        return Rule(name, False, said, {"mask": mask}), 0, set()
    if not number:
        said = f"needs a sequence of {MIN_TELLING} tokens with r < -0.1"
        return Rule(name, None, said, {"sequences": len(table.step), "testable": 0}), 0, set()
    lag, gain = _lags(table)
    shifted = testable & (lag != 0) & (gain > MIN_GAIN)
    share = float(shifted.sum() / number)
    mean = {k: float(table.cost[k][testable].sum() / table.telling[testable].sum()) for k in LAGS}
    evidence: dict[str, Any] = {
        "testable": number,
        "shifted": int(shifted.sum()),
        "share_shifted": share,
        "mean_abs_at_lag": mean,
        "mask": mask,
    }
    few = shifted.sum() < max(MIN_ROWS, MIN_SHARE * number) or shifted.sum() <= split
    if not shifted.any() or (share <= MOST and few):
        rivals = min(mean[k] for k in LAGS if k != 0)
        better = rivals / mean[0] if mean[0] > 0 else math.inf
        said = f"r fits t {min(better, 9999):,.0f} times better in place than shifted ({number:,} sequences)"
        return Rule(name, True, said, evidence), 0, set()
    lags, counts = np.unique(lag[shifted], return_counts=True)
    common = int(lags[counts.argmax()])
    rows = np.flatnonzero(shifted)[np.argsort(-gain[shifted])][:ROWS]
    evidence |= {
        "lag": common,
        "lags": {int(k): int(c) for k, c in zip(lags, counts, strict=True)},
        "median_gain": float(np.median(gain[shifted])),
        "rows": [_row(table, int(i), lag=int(lag[i]), gain=float(gain[i])) for i in rows],
    }
    if share > MOST and counts.max() > MOST * counts.sum():
        way = "late" if common > 0 else "early"
        tokens = "one token" if abs(common) == 1 else f"{abs(common)} tokens"
        said = f"rollout_logprob is {tokens} {way}: with lag {common:+d} mean |d| falls from {mean[0]:.3g}"
        return Rule(name, False, f"{said} to {mean[common]:.3g}", evidence), common, set()
    said = (
        f"{int(shifted.sum()):,} of {number:,} sequences are shifted by {_listed(evidence['lags'])}: columns misaligned"
    )
    return Rule(name, False, said, evidence), 0, _keys(table, shifted)


def inserted(table: LagTable) -> tuple[Rule, set[tuple[int, int]]]:
    """Rule 7, and the sequences that are in two pieces."""
    name = "inserted-token"
    testable = (table.telling >= 2 * PIECE) & np.isfinite(table.split_cost)
    number = int(testable.sum())
    if not number:
        said = f"needs a sequence of {2 * PIECE} tokens with r < -0.1"
        return Rule(name, None, said, {"sequences": len(table.step), "testable": 0}), set()
    single = np.min([table.cost[k] for k in LAGS], axis=0)
    lowest = np.maximum(table.split_cost, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = np.where(single > 0, single / lowest, 1.0)
    split = testable & (gain > MIN_GAIN) & (single - lowest > MIN_SAVED)
    evidence: dict[str, Any] = {
        "testable": number,
        "split": int(split.sum()),
        "share_split": float(split.sum() / number),
    }
    evidence["largest_gain"] = float(gain[testable].max())
    if split.sum() < max(min(MIN_ROWS, number), MIN_SHARE * number):
        said = f"no shift sets in inside any of {number:,} sequences (largest gain {gain[testable].max():.2f})"
        return Rule(name, True, said, evidence), set()
    rows = np.flatnonzero(split)[np.argsort(-gain[split])][:ROWS]
    evidence["rows"] = [
        _row(table, int(i), lag_before=table.lags(int(i))[0], lag_after=table.lags(int(i))[1], gain=float(gain[i]))
        for i in rows
    ]
    before, after = table.lags(int(rows[0]))
    said = f"{int(split.sum()):,} of {number:,} sequences need lag {before:+d} first and {after:+d} later"
    return Rule(name, False, f"{said}: a token too many or too few on one side", evidence), _keys(table, split)


def _row(table: LagTable, i: int, **more: Any) -> dict[str, Any]:
    return {"step": int(table.step[i]), "sequence": int(table.sequence[i]), **more}


def _listed(lags: dict[int, int]) -> str:
    return ", ".join(f"{k:+d} ({n:,})" for k, n in sorted(lags.items(), key=lambda kv: -kv[1]))


def _keys(table: LagTable, rows: npt.NDArray[np.bool_]) -> set[tuple[int, int]]:
    return set(zip(table.step[rows].tolist(), table.sequence[rows].tolist(), strict=True))
