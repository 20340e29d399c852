"""What is written comes back: values bit for bit, missing as NULL, NaN as NaN, whatever the shapes."""

from __future__ import annotations

import tempfile

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from timscope.data import Manifest, RunWriter, open_run
from timscope.data.schema import TOKENS

floats = st.one_of(st.none(), st.floats(width=32, allow_nan=True, allow_infinity=True))


@st.composite
def steps(draw: st.DrawFn) -> dict[int, list[list[dict[str, object]]]]:
    """Per step, per sequence, a list of token rows."""
    row = st.fixed_dictionaries(
        {
            "token_id": st.integers(0, 2**31 - 1),
            "mask": st.booleans(),
            "rollout_logprob": floats,
            "old_logprob": floats,
            "entropy": floats,
            "weight_version": st.one_of(st.none(), st.integers(0, 9)),
        }
    )
    numbers = draw(st.lists(st.integers(0, 50), min_size=1, max_size=3, unique=True))
    return {n: draw(st.lists(st.lists(row, min_size=1, max_size=5), min_size=1, max_size=4)) for n in numbers}


def _flat(step: int, sequences: list[list[dict[str, object]]]) -> list[dict[str, object]]:
    return [
        {"step": step, "sequence": i, "position": 7 + j, **row}
        for i, rows in enumerate(sequences)
        for j, row in enumerate(rows)
    ]


def _same(a: object, b: object) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return np.float32(a).tobytes() == np.float32(b).tobytes() or (np.isnan(a) and np.isnan(b))
    return a == b


@settings(max_examples=25, deadline=None)
@given(steps(), st.randoms())
def test_tokens_come_back_as_written(run: dict[int, list[list[dict[str, object]]]], rng: object) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with RunWriter(folder, Manifest(), strict=True) as writer:
            for step, sequences in run.items():
                rows = _flat(step, sequences)
                rng.shuffle(rows)  # type: ignore[attr-defined]  # the writer sorts
                writer.put("tokens", step, {k: [r[k] for r in rows] for k in rows[0]})
                writer.complete(step)
        with open_run(folder) as back:
            assert back.complete_steps == sorted(run)
            frame = back.tokens()
            expected = [r for step in sorted(run) for r in _flat(step, run[step])]
            assert frame.height == len(expected)
            for got, want in zip(frame.iter_rows(named=True), expected, strict=True):
                for column in TOKENS.names:
                    assert _same(got[column], want.get(column)), (column, got[column], want.get(column))


def test_masked_arrays_become_null_and_nan_stays() -> None:
    with tempfile.TemporaryDirectory() as folder:
        with RunWriter(folder, strict=True) as writer:
            values = np.ma.MaskedArray(np.array([-1.0, np.nan, -3.0], np.float32), mask=[True, False, False])
            writer.put("tokens", 0, {"sequence": [0, 0, 0], "position": [0, 1, 2], "rollout_logprob": values})
            writer.complete(0)
        with open_run(folder) as run:
            column = run.tokens()["rollout_logprob"]
            assert column.null_count() == 1 and column[0] is None
            assert column.is_nan().sum() == 1 and column[2] == -3.0


def test_framework_metrics_and_rewards_keep_their_names() -> None:
    with tempfile.TemporaryDirectory() as folder:
        with RunWriter(folder, strict=True) as writer:
            for step in (0, 1):
                extra = {"sampling/x": [0.5]} if step else {}
                writer.put("steps", step, {"loss": [0.25 + step], **extra})
                writer.put("sequences", step, {"sequence": [0], "prompt_ids": [[1, 2]], "reward/exact": [1.0]})
                writer.complete(step)
        with open_run(folder) as run:
            assert run.steps()["sampling/x"].to_list() == [None, 0.5]
            assert run.steps()["loss"].to_list() == [0.25, 1.25]
            assert run.sequences([1])["reward/exact"].to_list() == [1.0]
            assert run.sequences()["prompt_ids"].to_list() == [[1, 2], [1, 2]]
            assert isinstance(run.gradients(), pl.DataFrame) and run.gradients().is_empty()
