"""Group-normalised advantages recomputed from the rewards, for the algorithms whose formula is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from timscope.analysis.check.report import ROWS
from timscope.data import Manifest

_GROUPED = ("grpo", "dapo", "rloo", "gspo", "cispo", "gmpo")
_TOLERANCE = 1e-2
# Share of groups that must disagree: reward shaping may touch a few.
MIN_SHARE = 0.05


def _of_other_rewards(manifest: Manifest, name: str) -> bool:
    """Whether the advantages are of something else than the logged rewards: less a KL term, clipped, or each reward
    function normalised before they are added."""
    options = {key.rpartition(".")[2]: value for key, value in manifest.algorithm.options.items()}
    kl = options.get("use_kl_in_reward") or ("rloo" in name and options.get("beta"))
    together = options.get("multi_objective_aggregation") in (None, "sum_then_normalize")
    return bool(kl or options.get("reward_clip_range") or not together)


def advantage_gaps(manifest: Manifest, sequences: pl.DataFrame) -> dict[str, Any] | None:
    """Groups whose advantages are no multiple of reward - mean(reward). None where that cannot be tested.

    Every variant is such a multiple inside one group: GRPO divides by the group's or the batch's standard deviation,
    Dr. GRPO by nothing, RLOO multiplies by n / (n - 1). Only whole groups count: those of the size that the manifest
    names, or the most frequent one.
    """
    name = (manifest.algorithm.name or "").lower().replace("-", "_")
    known = sequences.drop_nulls(["group_id", "reward", "advantage"])
    if not any(n in name for n in _GROUPED) or not known.height or _of_other_rewards(manifest, name):
        return None
    groups = known.group_by("step", "group_id", maintain_order=True).agg("sequence", "reward", "advantage")
    sizes = groups["reward"].list.len()
    size = manifest.algorithm.options.get("num_generations") or int(sizes.mode().max() or 0)  # type: ignore[arg-type]
    groups = groups.filter(sizes == size)
    if size < 2 or not groups.height:
        return None
    reward = np.array(groups["reward"].to_list(), np.float64)
    logged = np.array(groups["advantage"].to_list(), np.float64)
    centred = reward - reward.mean(1, keepdims=True)
    square = (centred**2).sum(1)
    flat = square <= 1e-12 * np.maximum((reward**2).sum(1), 1e-12)
    factor = np.where(flat, 0.0, (centred * logged).sum(1) / np.where(flat, 1.0, square))
    rest = np.abs(logged - factor[:, None] * centred).max(1)
    wrong = rest > _TOLERANCE * np.maximum(np.abs(logged).max(1), _TOLERANCE)
    wrong |= factor < 0
    bad = np.flatnonzero(wrong)
    return {
        "groups": groups.height,
        "group_size": int(size),
        "differ": len(bad),
        "share": float(wrong.mean()),
        "rows": [
            {
                "step": int(groups["step"][int(i)]),
                "group_id": groups["group_id"][int(i)],
                "rewards": reward[i].round(6).tolist(),
                "logged": logged[i].round(6).tolist(),
            }
            for i in bad[:ROWS]
        ],
    }
