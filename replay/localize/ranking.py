"""Swaps run on a model, and ranked by how much of the difference from a target each removes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from timscope.analysis.formulas.removal import NOTICEABLE, Interval, Removal, removal
from timscope.data import Run
from timscope.replay.localize.computation import Computation
from timscope.replay.localize.patching import Patches
from timscope.replay.localize.swap_table import CONTROL, CONTROL_GROUP, WHOLE, Swap
from timscope.replay.localize.texts import Text
from timscope.replay.localize.witness import Witness, parse_witness

Logprobs = npt.NDArray[np.float32]
MOST_TOGETHER = 4
# A swap explains a mismatch if its interval of variance removed lies above this.
EXPLAINS = 0.05
# Variance of a swap's change over that of the mismatch: within these it is a noise of the same size.
SAME_SIZE = (0.5, 2.0)


class Bench:
    """One model, one start and one set of texts, on which swaps are run; each result is kept by name."""

    def __init__(
        self,
        run: Run,
        model: Any,
        start: Witness,
        texts: Sequence[Text],
        temperature: float,
        progress: Callable[[], None],
    ) -> None:
        self._run, self._model, self._texts, self._temperature = run, model, texts, temperature
        self._progress = progress
        self.start = start
        self.results: dict[str, Logprobs] = {}
        self.before = self.score(start)

    def score(self, witness: Witness, swaps: Sequence[Swap] = ()) -> Logprobs:
        """Log-probs [N] of a witness with these swaps put in, one over the other; the model is as before afterwards."""
        with Computation(self._model, witness, self._temperature) as computation, Patches() as patches:
            for swap in swaps:
                swap.install(computation, patches)
            result: Logprobs = computation.score(self._texts).numpy()
        self._progress()
        return result

    def swap(self, swap: Swap) -> Logprobs:
        """Log-probs [N] with one swap."""
        if swap.name not in self.results:
            other = None if swap.instead is None else parse_witness(swap.instead, self._run)
            self.results[swap.name] = self.score(other or self.start, () if other else (swap,))
        return self.results[swap.name]


def rank(
    bench: Bench, swaps: Sequence[Swap], target: Logprobs, sequence: npt.NDArray[np.int64], resamples: int, seed: int
) -> dict[str, Any]:
    """Every swap against `target` [N], the best first; tokens whose target is not finite do not count."""
    keep = np.isfinite(target)

    def measured(swapped: Logprobs) -> Removal:
        return removal(target[keep], bench.before[keep], swapped[keep], sequence[keep], resamples, seed)

    rows = [_row(swap, measured(bench.swap(swap))) for swap in swaps]
    rows.sort(key=_place)
    control = next(row for row in rows if row["name"] == CONTROL)
    singles = [row for row in rows if row["state"] == "removes"]
    best = next((row["name"] for row in singles if row["removed_variance"]["low"] > EXPLAINS), None)
    before = (target[keep] - bench.before[keep]).astype(np.float64)
    return {
        "start": bench.start.name,
        "tokens": int(keep.sum()),
        "sequences": int(np.unique(sequence[keep]).size),
        "mismatch": {"mean_abs": float(np.abs(before).mean()), "variance": float(before.var())},
        "ranking": rows,
        "together": _together(bench, swaps, rows, measured),
        "best": best,
        "same_size": [row["name"] for row in rows if SAME_SIZE[0] <= row["size"] <= SAME_SIZE[1]],
        "control": {"equal_share": control["equal_share"], "removed": control["removed_variance"]["value"]},
        "control_passed": control["state"] == "nothing" and control["removed_variance"]["value"] == 0.0,
    }


def _place(row: dict[str, Any]) -> tuple[bool, bool, float]:
    """Most variance removed first, then what does nothing, the control last."""
    removed = row["removed_variance"]["value"]
    return row["name"] == CONTROL, row["state"] == "nothing", -removed if np.isfinite(removed) else np.inf


def _together(
    bench: Bench, swaps: Sequence[Swap], rows: list[dict[str, Any]], measured: Callable[[Logprobs], Removal]
) -> list[dict[str, Any]]:
    """Swaps put in one over the other while that removes more: the best single one, then those that explain most.

    One that explains a part of d may remove nothing alone, where its own noise outweighs that part.
    """
    known = {swap.name: swap for swap in swaps}
    parts = [row for row in rows if row["group"] not in (WHOLE, CONTROL_GROUP)]
    first = [row for row in parts if row["state"] == "removes"][:1]
    others = [row for row in parts if row not in first and row["explained"]["low"] > EXPLAINS]
    others.sort(key=lambda row: -row["explained"]["value"])
    found: list[dict[str, Any]] = []
    chosen: list[Swap] = []
    for row in [*first, *others][:MOST_TOGETHER] if first else []:
        tried = [*chosen, known[row["name"]]]
        result = measured(bench.swap(tried[0]) if len(tried) == 1 else bench.score(bench.start, tried))
        if not found or result.variance.value > found[-1]["removed_variance"]["value"] + NOTICEABLE:
            chosen = tried
            found.append({"names": [swap.name for swap in chosen], **_figures(result)})
    return found


def _row(swap: Swap, result: Removal) -> dict[str, Any]:
    return {"name": swap.name, "group": swap.group, "what": swap.what, **_figures(result)}


def _figures(result: Removal) -> dict[str, Any]:
    def said(interval: Interval) -> dict[str, float]:
        return {"value": interval.value, "low": interval.low, "high": interval.high}

    return {
        "state": result.state,
        "removed_variance": said(result.variance),
        "removed_mean_abs": said(result.mean_abs),
        "explained": said(result.explained),
        "size": result.size,
        "moved_rms": result.moved,
        "equal_share": result.equal,
    }
