"""What counts as damage of a dump (the exit code of an import), and the tier of token rows that lack columns."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dump_nemo_rl import write as write_nemo_rl
from dump_prime_rl import write as write_prime_rl
from samples import recognisable

from timscope.data.importers import convert
from timscope.data.importers.base import Part
from timscope.data.importers.columns import Row, sequence_part
from timscope.data.importers.convert import Summary, import_dump
from timscope.data.importers.watch import Watch
from timscope.data.importers.without_ids import hide_placeholders, placeholder_ids


def kinds(done: Summary) -> set[str]:
    return {finding.kind for finding in done.imported.findings}


@pytest.mark.parametrize(("steps", "gap"), [((1, 2, 3), None), ((1, 3), [[2, 2]]), ((2, 3), None)])
def test_a_step_that_is_gone_is_damage(tmp_path: Path, steps: tuple[int, ...], gap: list[list[int]] | None) -> None:
    (tmp_path / "dump").mkdir()
    for step in steps:
        write_nemo_rl(tmp_path / "dump", step, [recognisable()] * 3)
    done = import_dump(tmp_path / "dump", tmp_path / "run")
    assert done.damaged is (gap is not None)
    assert [f.evidence["gaps"] for f in done.imported.findings if f.kind == "missing-step"] == ([gap] if gap else [])


def test_a_nan_that_the_job_computed_is_no_damage_of_its_dump(tmp_path: Path) -> None:
    """The import is faithful and whole: such a run fails where it is checked, not where it is read."""
    sample = recognisable()
    sample.trainer[0] = math.nan
    done = import_dump(write_prime_rl(tmp_path / "dump", 1, [[sample, recognisable()]]), tmp_path / "run")
    assert kinds(done) == {"non-finite"} and not done.damaged
    assert "non-finite" not in convert.DAMAGE and "missing-step" in convert.DAMAGE


def rows_without(*names: str) -> Part:
    """Token rows that lack these columns, ids made NULL as the formats do it."""
    has: dict[str, Any] = {"rollout_logprob": np.full(3, -1.0), "old_logprob": np.full(3, -1.1)}
    ids = placeholder_ids(3) if "token_id" in names else np.arange(3)
    row = Row(prompt_ids=[1], token_ids=ids, advantage=0.5, **{k: v for k, v in has.items() if k not in names})
    return hide_placeholders(sequence_part(0, [row]))


@pytest.mark.parametrize(
    ("lacking", "tier"),
    [
        ((), "T3"),
        (("token_id",), "T3"),  # both sides can be compared without knowing whose log-probs they are
        (("rollout_logprob",), "T2"),
        (("token_id", "rollout_logprob"), "T1"),  # one side of unknown tokens: nothing to compare or to score
        (("token_id", "rollout_logprob", "old_logprob"), "T1"),
    ],
)
def test_the_tier_is_what_the_token_rows_really_hold(lacking: tuple[str, ...], tier: str) -> None:
    watch = Watch()
    watch.add(rows_without(*lacking))
    assert watch.tier == tier
    assert ("replay" in watch.cannot()) == ("token_id" in lacking)
    assert ("diagnose" in watch.cannot()) == ("rollout_logprob" in lacking)


def test_without_token_rows_sequences_are_texts_and_steps_are_metrics() -> None:
    texts, metrics = Watch(), Watch()
    texts.add(sequence_part(0, [Row(prompt="q", completion="a", reward=1.0)]))
    metrics.add(Part(0, {"steps": {"loss": [0.1]}}))
    assert (texts.tier, metrics.tier) == ("T1", "T0")
