"""Rule 8: the two sides did not see the same input. By ids where both prompts were logged, else by its trace in |d|:
columns that have nothing to do with each other, or a difference that fades along the response."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import polars as pl

from timscope.analysis.check.profile import Profile
from timscope.analysis.check.relation import Relation
from timscope.analysis.check.report import ROWS, Rule
from timscope.analysis.findings import percent
from timscope.data import Run

NAME = "different-inputs"
MAX_RATIO = 5.0


def different_inputs(run: Run, sequences: pl.DataFrame, profile: Profile, found: Relation) -> Rule:
    """The rule. Works without any compared token where both prompts were logged."""
    known = sequences.drop_nulls("other_prompt")
    ratio = profile.ratio()
    evidence: dict[str, Any] = {
        "sequences_with_both_prompts": known.height,
        "early_late_ratio": ratio,
        "long_sequences": profile.long_sequences,
        "over_random_pairs": found.ratio,
        "unrelated": found.unrelated,
        "foreign_sequences": len(found.foreign),
    }
    differ = known.filter(pl.col("other_prompt"))
    if differ.height:
        rows = _rows(run)
        evidence |= {"sequences_that_differ": differ.height, "rows": rows}
        said = f"{differ.height:,} of {known.height:,} prompts differ between engine and trainer"
        return Rule(NAME, False, f"{said}, first at index {rows[0]['index']}", evidence)
    if found.unrelated:
        said = f"|d| is {percent(found.ratio)} of that of tokens paired at random, at every lag: not of the same tokens"
        return Rule(NAME, False, said, evidence)
    if found.foreign:
        evidence["rows"] = list(found.rows)
        said = f"{len(found.foreign):,} of {found.testable:,} sequences ({percent(found.share)}) fit hardly better than"
        return Rule(NAME, False, f"{said} random pairs, the rest fits: rows in another order or text", evidence)
    if ratio is not None and ratio > MAX_RATIO:
        said = f"|d| of tokens 1 to 19 is {ratio:.1f} times that of late tokens of equal probability"
        return Rule(NAME, False, f"{said}: another prompt on one side", evidence)
    if known.height:
        return Rule(NAME, True, f"{known.height:,} prompts are the same on both sides", evidence)
    if ratio is not None:
        return Rule(
            NAME, True, f"|d| at the start is {ratio:.2f} times that at the end (no engine_prompt_ids)", evidence
        )
    said = "needs engine_prompt_ids, or long responses"
    return Rule(NAME, None, said, {**evidence, "missing": ["engine_prompt_ids"]})


def _rows(run: Run) -> list[dict[str, Any]]:
    """The first differing prompts: where they part, and the ids around that place."""
    frame = run.sql(
        "SELECT step, sequence, prompt_ids, engine_prompt_ids FROM sequences WHERE prompt_ids <> engine_prompt_ids "
        f"ORDER BY step, sequence LIMIT {ROWS}"
    )
    rows = []
    for step, sequence, trainer, engine in frame.iter_rows():
        pairs = zip_longest(trainer, engine)
        index = next(i for i, (a, b) in enumerate(pairs) if a != b)
        rows.append(
            {
                "step": step,
                "sequence": sequence,
                "index": index,
                "trainer": list(trainer[index : index + 4]),
                "engine": list(engine[index : index + 4]),
                "trainer_tokens": len(trainer),
                "engine_tokens": len(engine),
            }
        )
    return rows
