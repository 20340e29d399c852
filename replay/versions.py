"""Which weights sampled what: a run's steps divided by the version of the weights, as far as the run holds them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from timscope.data import BadInput, Run
from timscope.data.manifest import WeightVersion
from timscope.data.weights import Entry, WeightStore, spans
from timscope.replay.replay_input import StepInput, choose_steps, read_step


@dataclass(frozen=True)
class Share:
    """What one version of the weights sampled: whole steps, or those of their sequences that are its own.

    `entry`: the version as it is stored in the run; None: the model at hand.
    """

    version: int | None
    entry: Entry | None
    items: list[StepInput]

    @property
    def steps(self) -> set[int]:
        """Numbers of its steps."""
        return {item.step for item in self.items}

    def without(self, steps: Collection[int]) -> Share:
        """The same without these steps."""
        return Share(self.version, self.entry, [item for item in self.items if item.step not in steps])


_SAMPLED = """
SELECT step, low, high, resume, list(sequence ORDER BY sequence) AS sequences FROM (
    SELECT t.step, t.sequence, any_value(s.resume) AS resume,
           min(coalesce(t.weight_version, s.weight_version)) AS low,
           max(coalesce(t.weight_version, s.weight_version)) AS high
    FROM witnesses t LEFT JOIN steps s USING (step) GROUP BY t.step, t.sequence
) GROUP BY step, low, high, resume ORDER BY step, low
"""


def given_shares(run: Run, version: int | None, steps: Sequence[int] | None) -> list[Share]:
    """All steps of one version (None: whichever steps are named), for a model at hand. BadInput as `choose_steps`."""
    return [Share(version, None, [read_step(run, step) for step in choose_steps(run, version, steps)])]


def recorded_shares(run: Run, first: WeightVersion | None, steps: Sequence[int] | None) -> list[Share]:
    """The steps (all, or those named) by version, in order of version, each once with all its sequences.

    A version that is not stored can still be `first`, which the manifest says where to get. By default steps without
    weights are left out; BadInput where one is named, or where none is left.
    """
    store = WeightStore(run.storage)
    find = cache(store.find)
    wanted = None if steps is None else set(steps)
    parts: dict[int, list[tuple[tuple[int, int], Entry | None, list[int]]]] = {}
    missing: dict[int, str] = {}
    for row in run.sql(_SAMPLED).iter_rows(named=True):
        step, version = row["step"], row["low"]
        if wanted is not None and step not in wanted:
            continue
        parts.setdefault(step, [])
        entry = None if version is None else find(version, row["resume"])
        at_hand = entry is not None or (first is not None and version == first.version and bool(first.source))
        if version is None or version != row["high"] or not at_hand:
            missing.setdefault(step, _reason(row))
        else:
            parts[step].append((entry.key if entry else (version, -1), entry, row["sequences"]))
    _refuse(run, store, parts, missing, wanted)
    return _by_version(run, {step: said for step, said in parts.items() if step not in missing})


def _by_version(run: Run, parts: dict[int, list[tuple[tuple[int, int], Entry | None, list[int]]]]) -> list[Share]:
    shares: dict[tuple[int, int], Share] = {}
    for step, said in parts.items():
        whole = read_step(run, step)
        for key, entry, sequences in said:
            share = shares.setdefault(key, Share(key[0], entry, []))
            share.items.append(whole if len(said) == 1 else whole.only(sequences))
    return [shares[key] for key in sorted(shares)]


def _reason(row: dict[str, Any]) -> str:
    if row["low"] is None:
        return "names no weights version"
    if row["low"] != row["high"]:
        return f"has a sequence sampled under weights versions {row['low']} to {row['high']}"
    return f"was sampled under weights version {row['low']}, which is not stored"


def _refuse(run: Run, store: WeightStore, parts: Any, missing: dict[int, str], wanted: set[int] | None) -> None:
    if wanted is not None and (unknown := sorted(wanted - set(parts))):
        had = f"{min(run.complete_steps)} to {max(run.complete_steps)}" if run.complete_steps else "none"
        raise BadInput(f"step {unknown[0]} is not a complete step of {run.path}: it has {had}")
    if missing and (wanted is not None or len(missing) == len(parts)):
        step = min(missing)
        raise BadInput(
            f"step {step} of {run.path} {missing[step]}; weights stored are {spans(store.versions())}: replay other "
            "steps, or give the weights with --model and --allow-other-weights"
        )
    if not parts:
        raise BadInput(f"{run.path} has no complete step to replay")
