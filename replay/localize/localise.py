"""The main job: two witnesses of one step compared site by site, and the swaps ranked against a target."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from timscope.data import BadInput, Run, open_run
from timscope.replay.environment import environment
from timscope.replay.localize.comparison import Comparison, compare
from timscope.replay.localize.computation import Computation
from timscope.replay.localize.ranking import Bench, rank
from timscope.replay.localize.source import Material, read_material, recorded
from timscope.replay.localize.swap_table import choose_swaps
from timscope.replay.localize.witness import Witness, parse_witness
from timscope.replay.replay_input import replay_temperature

GROUP = 4
RIGHT = "right"


@dataclass
class Localisation:
    """`said` is the report's JSON object; `tokens` holds per-token columns [N] for the Parquet file."""

    said: dict[str, Any]
    tokens: dict[str, npt.NDArray[Any]] = field(default_factory=dict)


def localize(
    run_path: str | os.PathLike[str],
    step: int,
    *,
    left: str = "exact",
    right: str = "trainer",
    target: str | None = None,
    swaps: Sequence[str] | None = None,
    sequences: int = 16,
    model: str | os.PathLike[str] | None = None,
    device: str = "cpu",
    resamples: int = 1000,
    seed: int = 0,
    allow_other_weights: bool = False,
    progress: Callable[[str], None] = lambda _what: None,
) -> Localisation:
    """Compare witnesses `left` and `right` on a step's response tokens, then rank swaps from `left` to `target`.

    `target` is a column of the run that holds log-probs, or "right" for the right witness; by default
    rollout_logprob. `swaps` names some of the table (default: all that fit the start's dtype); an empty sequence ranks
    none. `progress` is told what is done next. Raises BadInput where names, run or weights do not serve.
    """
    with open_run(run_path) as run:
        first, second = parse_witness(left, run), parse_witness(right, run)
        chosen = choose_swaps(swaps, first.dtype)
        column = target or "rollout_logprob"
        temperature = replay_temperature(run)
        progress("weights")
        material = read_material(run, step, sequences, model, device, allow_other_weights)
        aim = None if column == RIGHT else _recorded_target(run, step, column, material, needed=target is not None)
        progress("sites")
        found = _compare(material, first, second, temperature)
        said = _said(run, step, first, second, material, found, device)
        tokens: dict[str, npt.NDArray[Any]] = {
            "sequence": material.sequence,
            "position": material.position,
            "token_id": material.token,
        }
        bench = Bench(run, material.model, first, material.texts, temperature, lambda: progress("swap"))
        other = bench.score(second)
        tokens |= {"left": bench.before, "right": other}
        said["logprob"] = _apart(bench.before, other)
        if second.name == "trainer":
            said["trainer_check"] = _check(run, step, material, other)
        aim = other if column == RIGHT else aim
        said["swaps"] = None
        if swaps is None or swaps:
            if aim is None:
                said["swaps_left_out"] = f"no {column} in step {step} to rank swaps against"
            else:
                ranked = rank(bench, chosen, aim, material.sequence, resamples, seed)
                said["swaps"] = {"target": second.name if column == RIGHT else column, **ranked}
                tokens |= {"target": aim} | {f"swap_{name}": value for name, value in bench.results.items()}
    return Localisation(said, tokens)


def _compare(material: Material, left: Witness, right: Witness, temperature: float) -> Comparison:
    group = max(w.padding.size if w.padding else 1 for w in (left, right))
    first, second = (Computation(material.model, witness, temperature) for witness in (left, right))
    return compare(material.model, first, second, material.texts, max(group, GROUP - GROUP % group))


def _recorded_target(
    run: Run, step: int, column: str, material: Material, needed: bool
) -> npt.NDArray[np.float32] | None:
    from timscope.data.schema import LOGPROB_COLUMNS

    if column not in LOGPROB_COLUMNS:
        raise BadInput(f"{column!r} is no recorded log-prob column: take {', '.join(LOGPROB_COLUMNS)} or {RIGHT}")
    values = recorded(run, step, column, material.texts)
    if np.isfinite(values).any():
        return values
    if needed:
        raise BadInput(f"step {step} of {run.path} has no {column}: take another --target")
    return None


def _said(
    run: Run, step: int, left: Witness, right: Witness, material: Material, found: Comparison, device: str
) -> dict[str, Any]:
    first = found.first()
    rows = found.rows()
    return {
        "step": step,
        "sequences": len(material.texts),
        "sequences_left_out": material.left_out,
        "tokens": int(material.token.size),
        "left": left.said(),
        "right": right.said(),
        "parted": first is not None,
        "first": None if first is None else next(row for row in rows if row["site"] == first.name),
        "sites": rows,
        "model": {"architecture": run.manifest.model.architecture, "digest": material.digest},
        "environment": environment(device),
    }


def _apart(left: npt.NDArray[np.float32], right: npt.NDArray[np.float32]) -> dict[str, float]:
    """How far two columns of log-probs [N] are apart: mean_abs, rms, max_abs in nats; share of equal tokens."""
    d = right.astype(np.float64) - left.astype(np.float64)
    return {
        "mean_abs": float(np.abs(d).mean()),
        "rms": float(np.sqrt((d * d).mean())),
        "max_abs": float(np.abs(d).max()),
        "equal_share": float((left == right).mean()),
    }


def _check(run: Run, step: int, material: Material, emulated: npt.NDArray[np.float32]) -> dict[str, Any] | None:
    """The emulated trainer against what the run's trainer recorded: None where it recorded nothing."""
    old = recorded(run, step, "old_logprob", material.texts)
    keep = np.isfinite(old)
    return _apart(old[keep], emulated[keep]) if keep.any() else None
