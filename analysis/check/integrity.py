"""Rule 1: is the log whole and consistent? Lengths, order, ids, signs, versions, ranks, what the recorder lost."""

from __future__ import annotations

from typing import Any

import polars as pl

from timscope.analysis.check.report import ROWS, Rule
from timscope.analysis.check.structure import Structure
from timscope.analysis.check.versions import ranks, versions
from timscope.data import Run

# What is said of each violation. Those of _SOFT leave the numbers of the remaining tokens meaningful.
_SAID = {
    "logprob_without_token": "log-probs without a token",
    "shorter": "tokens in the loss without a log-prob (columns of different lengths)",
    "length": "sequences whose num_tokens differs from their token rows",
    "without_row": "sequences with tokens but no row in `sequences`, or the reverse",
    "repeated_sequence": "sequences that come twice",
    "duplicate": "tokens logged twice under one (step, sequence, position)",
    "out_of_order": "positions that go back inside a sequence",
    "gap": "gaps between positions",
    "not_after_prompt": "sequences that do not start where their prompt ends",
    "negative_id": "negative token ids",
    "id_beyond_vocabulary": "token ids beyond the vocabulary",
    "positive": "log-probs above 0",
    "version_back_in_sequence": "weight versions that go back inside a sequence",
    "version_back": "steps whose weight version goes back",
    "version_ahead": "sequences sampled by a version newer than the one trained",
    "rank_missing": "steps in which a rank is missing",
    "drops": "parts that the recorder dropped",
    "imported": "findings of the importer",
}
_SOFT = frozenset({"rank_missing", "drops", "version_back", "version_ahead", "version_back_in_sequence", "imported"})


def integrity(run: Run, structure: Structure, sequences: pl.DataFrame, notes: list[dict[str, Any]]) -> Rule:
    """The rule `integrity`. `notes` are an importer's findings of this kind."""
    if not structure.tokens:
        return Rule("integrity", None, "needs tokens: the run has none", {"tokens": 0})
    found: dict[str, dict[str, Any]] = {}
    small: dict[str, Any] = {}
    for name, violation in structure.found.items():
        kind, _, column = name.partition(":")
        entry = {"count": violation.count, "rows": violation.rows}
        if kind in ("above_zero", "turn_start"):
            small[name] = entry
        else:
            found[name] = entry if not column else {**entry, "column": column}
    found |= _sequences(structure.frame(), sequences)
    found |= versions(run, structure.frame(), sequences)
    found |= ranks(sequences)
    if drops := _drops(run):
        found["drops"] = {"count": drops}
    if notes:
        found["imported"] = {"count": sum(n["count"] for n in notes), "findings": notes[:ROWS]}
    evidence: dict[str, Any] = {
        "tokens": structure.tokens,
        "in_loss": structure.in_loss,
        "without_mask": structure.without_mask,
        "largest_token_id": structure.largest_id,
        "vocabulary": structure.vocabulary,
        "violations": found,
        "notes": small,
    }
    if not found:
        return Rule("integrity", True, _sound(structure, small), evidence)
    hard = [name for name in found if name.partition(":")[0] not in _SOFT]
    order = [*hard, *(name for name in found if name not in hard)]
    said = [f"{_SAID[n.partition(':')[0]]}: {found[n]['count']:,}" for n in order]
    return Rule("integrity", False, "; ".join(said[:3]), evidence, "error" if hard else "warn")


def _sound(structure: Structure, small: dict[str, Any]) -> str:
    ids = "ids below the vocabulary" if structure.vocabulary and structure.largest_id >= 0 else "vocabulary unknown"
    above = sum(v["count"] for k, v in small.items() if k.startswith("above_zero"))
    tail = f"; {above:,} log-probs above 0 by less than 1e-3" if above else ""
    return f"{structure.tokens:,} tokens in order, {ids}{tail}"


def _rows(frame: pl.DataFrame, *columns: str) -> dict[str, Any]:
    return {"count": frame.height, "rows": frame.select("step", "sequence", *columns).head(ROWS).to_dicts()}


def _sequences(stretches: pl.DataFrame, sequences: pl.DataFrame) -> dict[str, dict[str, Any]]:
    """Sequences against their tokens. Stretches of one sequence that do not follow each other count as repeats."""
    found: dict[str, dict[str, Any]] = {}
    key = ["step", "sequence"]
    whole = stretches.group_by(key, maintain_order=True).agg(
        pl.col("n").sum(), pl.col("first").min(), pl.col("last").max(), pl.len().alias("stretches")
    )
    twice = whole.filter((pl.col("stretches") > 1) & (pl.col("last") - pl.col("first") + 1 < pl.col("n")))
    if twice.height:
        found["repeated_sequence"] = _rows(twice, "stretches", "n")
    if not sequences.height:
        return found
    repeated = sequences.filter(pl.struct(key).is_duplicated())
    if repeated.height:
        found.setdefault("repeated_sequence", _rows(repeated))
    both = whole.join(sequences.unique(key), on=key, how="full", coalesce=True)
    # No tokens is what a sequence of length 0 has; of unknown length it is no contradiction.
    lost = both.filter(pl.col("n").is_null() & (pl.col("num_tokens").fill_null(0) > 0))
    orphans = both.join(sequences.select(key).unique().with_columns(known=True), on=key, how="left").filter(
        pl.col("known").is_null()
    )
    if lost.height or orphans.height:
        found["without_row"] = _rows(pl.concat([lost.select(both.columns), orphans.select(both.columns)]), "n")
    tests = {
        "length": pl.col("n") != pl.col("num_tokens"),
        "not_after_prompt": pl.col("first") != pl.col("prompt_tokens"),
    }
    for name, wrong in tests.items():
        bad = both.filter(pl.col("n").is_not_null() & wrong)
        if bad.height:
            found[name] = _rows(bad, "n", "num_tokens", "first", "prompt_tokens")
    return found


def _drops(run: Run) -> int:
    """Parts that the recorders of all ranks dropped."""
    return max(run.manifest.recorder.drops, sum(state.drops for state in run.recorders))
