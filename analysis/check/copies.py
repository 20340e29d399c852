"""Step by step: how many old log-probs are exactly 0, and how many equal the rollout's bit for bit."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from timscope.analysis.check.chunks import Chunk
from timscope.analysis.columns import LOSS, ROLLOUT, TRAINER

_NAMES = ("tokens", "equal", "zeros", "rollout", "in_loss", "loss_equal")


@dataclass
class Copies:
    """Collects what `faults.by_step` asks SQL for, in passing."""

    _parts: list[pl.DataFrame] = field(default_factory=list)

    def add(self, chunk: Chunk) -> None:
        """One chunk's share."""
        if chunk.null[ROLLOUT] is True or chunk.null[TRAINER] is True:
            return
        r, t, n = (chunk.values[c] for c in (ROLLOUT, TRAINER, LOSS))
        use = chunk.mask & np.isfinite(r) & np.isfinite(t)
        starts = np.flatnonzero(np.append(True, np.diff(chunk.step) != 0))
        counts = {
            "tokens": use,
            "equal": use & (r == t),
            "zeros": use & (t == 0.0),
            "rollout": np.where(use, r, 0.0),
            "in_loss": use & np.isfinite(n),
            "loss_equal": use & (n == r),
        }
        sums = {name: np.add.reduceat(v, starts, dtype=np.float64) for name, v in counts.items()}
        self._parts.append(pl.DataFrame({"step": chunk.step[starts], **sums}))

    def by_step(self) -> pl.DataFrame:
        """The columns of `faults.by_step`, without replays; steps without a compared token are left out."""
        empty = pl.DataFrame(schema={"step": pl.Int32, **dict.fromkeys(_NAMES, pl.Float64)})
        counts = [pl.col(c).sum().cast(pl.Int64) for c in _NAMES if c != "rollout"]
        steps = pl.concat(self._parts or [empty]).group_by("step").agg(*counts, pl.col("rollout").sum()).sort("step")
        return steps.filter(pl.col("tokens") > 0).select(
            *("step", "tokens", "equal", "zeros", "in_loss", "loss_equal"),
            mean_rollout=pl.col("rollout") / pl.col("tokens"),
            replayed=pl.lit(0),
            exact_equal=pl.lit(0),
        )
