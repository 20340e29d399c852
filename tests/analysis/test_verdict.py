"""Each verdict from a run that was made to deserve it, and the JSON contract."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from analysis_runs import categorical_run, opened, random_columns, write_run

from timscope.analysis.findings import Diagnosis, percent, plain
from timscope.analysis.verdict import diagnose
from timscope.data.manifest import Algorithm


def diagnosed(path: Path) -> Diagnosis:
    with opened(path) as run:
        found = diagnose(run)
    contract = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert {"verdict", "causes", "decomposition", "metrics"} <= set(contract)
    assert all({"kind", "confidence", "value", "evidence"} <= set(cause) for cause in contract["causes"])
    assert found.lines and all("\n" not in line for line in found.lines)
    assert not any("[" in line for line in found.lines)  # a terminal would take a bracket for markup
    return found


def sound(seed: int = 0, noise: float = 0.05, sequences: int = 64) -> dict[str, Any]:
    return categorical_run(np.random.default_rng(seed), sequences=sequences, length=30, noise=noise)


def kinds(found: Diagnosis) -> list[str]:
    return [cause.kind for cause in found.causes]


def jitter(values: np.ndarray, size: float, seed: int = 9) -> np.ndarray:
    return (values + size * np.random.default_rng(seed).normal(size=values.shape)).astype(np.float32)


def test_without_a_replay_the_side_is_unknown_and_the_next_command_is_named(tmp_path: Path) -> None:
    found = diagnosed(write_run(tmp_path, sound()))
    assert (found.verdict, found.side, found.causes) == ("tim", None, [])
    assert f"timscope replay {tmp_path}" in " ".join(found.lines)


def test_the_rollout_engine_is_named_where_the_trainer_is_reproduced(tmp_path: Path) -> None:
    columns = sound()
    exact = jitter(columns["old_logprob"], 1e-6)
    found = diagnosed(write_run(tmp_path, columns, exact=np.ma.array(exact)))
    assert (found.verdict, found.side, found.causes) == ("tim", "rollout engine", [])
    assert found.decomposition["attributed_rollout"] > 0.999
    assert found.decomposition["certified"] is True and found.decomposition["replay"] == "exact"
    assert found.decomposition["mean_abs_trainer"] < 1e-4
    assert "rollout engine" in found.lines[0]
    assert any("reproduced" in line for line in found.lines)


def test_the_trainer_is_named_where_the_rollout_is_reproduced(tmp_path: Path) -> None:
    columns = sound()
    found = diagnosed(write_run(tmp_path, columns, exact=np.ma.array(columns["rollout_logprob"].copy())))
    assert (found.verdict, found.side) == ("tim", "trainer")
    assert found.decomposition["rollout_equals_exact"] == 1


def test_both_sides(tmp_path: Path) -> None:
    columns = sound()
    middle = (columns["rollout_logprob"] + columns["old_logprob"]) / 2
    found = diagnosed(write_run(tmp_path, columns, exact=np.ma.array(jitter(middle, 0.005))))
    assert (found.verdict, found.side) == ("tim", "both")


def test_a_witness_far_from_both_resolves_nothing(tmp_path: Path) -> None:
    columns = sound()
    found = diagnosed(write_run(tmp_path, columns, exact=np.ma.array(jitter(columns["old_logprob"], 1.0))))
    assert (found.verdict, found.side) == ("tim", "not resolvable")
    assert found.decomposition["exact_noise_share"] > 0.5


def test_below_the_noise_floor_is_clean(tmp_path: Path) -> None:
    found = diagnosed(write_run(tmp_path, sound(noise=1e-6)))
    assert (found.verdict, found.side) == ("clean", None)
    assert "noise floor" in found.lines[0]


def test_log_probs_of_another_distribution_are_a_fault_of_the_data(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    columns = categorical_run(rng, sequences=64, length=30, noise=0.02, temperature=0.6)
    found = diagnosed(write_run(tmp_path, columns))
    assert found.verdict == "not-comparable" and found.missing == ()
    assert abs(found.metrics["mean_weight_z"]) > 5
    assert "not legitimate" in " ".join(found.lines)


def test_few_sequences_convict_nobody(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    columns = categorical_run(rng, sequences=4, length=200, noise=0.02, temperature=0.6)
    found = diagnosed(write_run(tmp_path, columns))
    assert found.verdict == "tim"
    assert "too few sequences" in " ".join(found.lines)


def test_repeated_rollouts_are_no_further_evidence(tmp_path: Path) -> None:
    """The same rollouts in four steps: z must not double."""
    columns = sound(noise=0.2)
    n = len(columns["step"])
    ids = [f"rollout-{i}" for i in range(64)]
    repeated = {k: np.concatenate([v] * 4) for k, v in columns.items()}
    repeated["step"] = np.repeat(np.arange(4), n)
    once = diagnosed(write_run(tmp_path / "once", columns, sequences={0: {"uid": ids}}))
    four = diagnosed(write_run(tmp_path / "four", repeated, sequences={s: {"uid": ids} for s in range(4)}))
    assert four.metrics["mean_weight_z"] == pytest.approx(once.metrics["mean_weight_z"], rel=0.02)


@pytest.mark.parametrize("column", ["rollout_logprob", "old_logprob"])
def test_a_missing_column_is_said(tmp_path: Path, column: str) -> None:
    columns = sound()
    del columns[column]
    found = diagnosed(write_run(tmp_path, columns))
    assert (found.verdict, found.missing) == ("not-comparable", (column,))
    assert column in found.reason


def test_columns_that_never_meet(tmp_path: Path) -> None:
    columns = sound()
    half = np.arange(len(columns["step"])) % 2 == 0
    columns["rollout_logprob"] = np.ma.array(columns["rollout_logprob"], mask=half)
    columns["old_logprob"] = np.ma.array(columns["old_logprob"], mask=~half)
    assert diagnosed(write_run(tmp_path, columns)).verdict == "not-comparable"


@pytest.mark.parametrize(
    ("mode", "loss", "verdict"),
    [
        ("bypass", "other", "not-comparable"),
        ("unknown", "other", "not-comparable"),
        ("unknown", None, "not-comparable"),
        ("recompute", "other", "not-comparable"),
        ("unknown", "same", "clean"),
        ("recompute", None, "clean"),
    ],
)
def test_a_copy_is_told_from_engines_that_agree(tmp_path: Path, mode: Any, loss: str | None, verdict: str) -> None:
    columns = sound()
    trainer = columns["old_logprob"]
    columns["old_logprob"] = columns["rollout_logprob"].copy()
    if loss:
        columns["loss_logprob"] = trainer if loss == "other" else columns["rollout_logprob"].copy()
    found = diagnosed(write_run(tmp_path, columns, algorithm=Algorithm(loss_mode=mode)))
    assert found.verdict == verdict
    assert kinds(found) == (["old-copies-rollout"] if verdict == "not-comparable" else [])


def test_zero_filled_old(tmp_path: Path) -> None:
    columns = random_columns(np.random.default_rng(0), steps=3)
    columns["old_logprob"][columns["step"] == 1] = 0.0
    found = diagnosed(write_run(tmp_path, columns))
    assert found.verdict == "not-comparable" and kinds(found) == ["zero-filled-old"]
    assert found.causes[0].evidence["steps"] == [1]


def test_non_finite_values_are_named_with_their_place(tmp_path: Path) -> None:
    columns = sound()
    columns["old_logprob"][[31, 40]] = -np.inf, np.nan
    found = diagnosed(write_run(tmp_path, columns))
    assert found.verdict == "tim" and kinds(found) == ["non-finite"]
    evidence = found.causes[0].evidence
    assert evidence["counts"] == {"old_logprob:nan": 1, "old_logprob:minus_inf": 1}
    first = evidence["first"][0]
    assert (first["step"], first["sequence"], first["position"]) == (0, 1, 8)


def stale_run(path: Path, lagging_noise: float, fresh: bool = True) -> Path:
    parts, sequences, steps = [], {}, {}
    for step in range(4):
        late = step >= 2 or not fresh
        part = sound(step, noise=lagging_noise if late else 0.02)
        parts.append({**part, "step": np.full(len(part["step"]), step)})
        sequences[step] = {"weight_version": np.full(64, step - (2 if late else 0) + 5)}
        steps[step] = {"loss": [0.0], "weight_version": [step + 5]}
    columns = {k: np.concatenate([p[k] for p in parts]) for k in parts[0]}
    return write_run(path, columns, sequences=sequences, steps=steps)


def test_lagging_weights_with_a_larger_gap_are_staleness(tmp_path: Path) -> None:
    found = diagnosed(stale_run(tmp_path, lagging_noise=0.2))
    assert found.verdict == "staleness" and kinds(found) == ["stale-weights"]
    assert found.causes[0].evidence["max_lag"] == 2 and found.causes[0].confidence == 0.9


def test_lagging_weights_without_a_larger_gap_are_not(tmp_path: Path) -> None:
    """TRL computes old when it samples: reusing a rollout later lags, but adds nothing to A - C."""
    found = diagnosed(stale_run(tmp_path, lagging_noise=0.02))
    assert found.verdict == "tim" and found.causes == []


def test_a_lag_everywhere_is_only_a_guess(tmp_path: Path) -> None:
    found = diagnosed(stale_run(tmp_path, lagging_noise=0.05, fresh=False))
    assert found.verdict == "staleness" and found.causes[0].confidence == 0.5


@pytest.mark.parametrize("mode", ["recompute", "bypass", "unknown"])
def test_k1_and_k3_clear_nothing_in_any_mode(tmp_path: Path, mode: Any) -> None:
    text = " ".join(diagnosed(write_run(tmp_path, sound(), algorithm=Algorithm(loss_mode=mode))).lines)
    assert f"Loss mode {mode}" in text and "k3" in text


def test_json_has_no_nan_and_no_infinity() -> None:
    assert plain({"a": [float("inf"), -float("inf"), float("nan"), 1.5]}) == {"a": ["inf", "-inf", None, 1.5]}


def test_percent_keeps_the_digits_that_matter() -> None:
    shown = [percent(x) for x in (0.5, 0.999998, 1.0, 0.0, 2e-9, None)]
    assert shown == ["50.0 %", "99.9998 %", "100.0 %", "0.0 %", "< 0.0001 %", "undefined"]
