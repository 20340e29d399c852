"""Rules 29 and 30: figures that are artefacts of how they were computed, and sequences of a kind of their own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checking import sound, warned
from inject import R, T, noisy
from recorded import Columns, sample, selected, whole_steps

from timscope.data.manifest import Algorithm

NAME = "estimator-artefact"
TRL_MEAN = "sampling/sampling_logp_difference/mean"


def logged(c: Columns, name: str, values: list[float]) -> Columns:
    """A series that the framework logged, a value a step."""
    c.steps = len(values)
    c.step_rows = {i: {**c.step_rows.get(i, {}), name: [v]} for i, v in enumerate(values)}
    return c


def test_a_metric_of_other_tokens(tmp_path: Path):
    c = whole_steps(np.random.default_rng(0), 8)
    name = next(n for n in c.step_rows[0] if n == TRL_MEAN)
    right = logged(c, name, [c.step_rows[i][name][0] for i in range(8)])
    sound(right.check(tmp_path / "right"))
    wrong = logged(c, name, [2 * c.step_rows[i][name][0] for i in range(8)])
    report = wrong.check(tmp_path / "wrong")
    warned(report, NAME)
    evidence = report.rule(NAME).evidence["metrics"][name]
    assert evidence["differ"] == evidence["steps"] == 8 and evidence["largest_gap"] == pytest.approx(0.5, abs=0.01)
    assert evidence["rows"][0]["logged"] == pytest.approx(2 * evidence["rows"][0]["recomputed"], rel=1e-3)


@pytest.mark.parametrize("every", [2, 4])
def test_a_mean_over_several_steps_is_not_held_against_the_last(tmp_path: Path, every: int):
    c = whole_steps(np.random.default_rng(0), 16)
    told = [c.step_rows[i][TRL_MEAN][0] for i in range(16)]
    means = [float(np.mean(told[i + 1 - every : i + 1])) if (i + 1) % every == 0 else None for i in range(16)]
    for i in range(16):
        c.step_rows[i] = {TRL_MEAN: [means[i]], "loss": [0.0]}
    report = c.check(tmp_path)
    sound(report)
    assert report.rule(NAME).evidence["metrics"] == {}


def golden(masked: int, told: float, kept: float) -> Columns:
    """verl#7771: t = -2, r = -1 everywhere, some rows outside the loss; what was logged of the log-perplexities."""
    rows, length = 8, 40
    number = np.repeat(np.arange(rows + masked), length)
    rng = np.random.default_rng(0)
    c = Columns(
        {
            "position": 4 + np.tile(np.arange(length), rows + masked),
            "token_id": rng.integers(0, 100, len(number)),
            "mask": number < rows,
            R: np.full(len(number), -1.0, np.float32),
            T: np.full(len(number), -2.0, np.float32),
        },
        number,
        {"prompt_ids": [[1, 2, 3, 4]] * (rows + masked), "num_tokens": [length] * (rows + masked)},
    )
    logged(c, "rollout_corr/log_ppl_abs_diff", [told])
    return logged(c, "rollout_corr/training_ppl", [kept])


@pytest.mark.parametrize(
    ("masked", "difference", "ppl", "fault"),
    [
        (0, 1.0, math.e**2, False),
        (8, 1.0, math.e**2, False),
        (8, 0.5, 4.194528, True),
        (24, 0.25, 2.597264, True),
    ],
)
def test_rows_outside_the_loss_dilute_perplexities(
    tmp_path: Path, masked: int, difference: float, ppl: float, fault: bool
):
    report = golden(masked, difference, ppl).check(tmp_path)
    metrics = report.rule(NAME).evidence["metrics"]
    assert (report.rule(NAME).passed is False) is fault
    for name, ours in (("rollout_corr/log_ppl_abs_diff", 1.0), ("rollout_corr/training_ppl", math.e**2)):
        assert metrics[name]["differ"] == fault
        if fault:
            assert metrics[name]["rows"][0]["recomputed"] == pytest.approx(ours) and metrics[name]["diluted"] is True
    assert not fault or "fully masked" in report.rule(NAME).detail


SERIES = [1.4, 2.0, 2.0, 1.7, 2.0, 2.0, 1.9, 2.0]


@pytest.mark.parametrize(
    ("name", "values", "fault"),
    [
        ("rollout_corr/rollout_is_max", SERIES, True),
        ("rollout_corr/rollout_is_max", [1.4, 2.13, 1.97, 1.7, 2.2, 1.3, 1.9, 2.05], False),
        ("sampling/importance_sampling_ratio/max", SERIES, True),
        ("rollout_corr/rollout_is_mean", SERIES, False),  # a mean may be what it likes
        ("completions/max_length", [64.0] * 8, False),  # no ratio
    ],
)
def test_a_maximum_that_stops_at_a_round_number(tmp_path: Path, name: str, values: list[float], fault: bool):
    report = logged(sample().with_rows(advantage=None), name, values).check(tmp_path)
    assert set(report.rule(NAME).evidence["capped"]) == ({name} if fault else set())
    if fault:
        warned(report, NAME)
        assert report.rule(NAME).evidence["capped"][name] == {"cap": 2.0, "steps_at_cap": 5, "steps": 8}
    else:
        sound(report)


def advantages(c: Columns, change: Any) -> Columns:
    """Advantages of the group of each sequence, changed."""
    values = np.array(c.rows["advantage"], np.float64).reshape(-1, 8)
    return c.with_rows(advantage=change(values).reshape(-1).tolist())


@pytest.mark.parametrize(
    ("name", "change", "fault"),
    [
        ("as logged", lambda a: a, False),
        ("of another scale", lambda a: 1.7 * a, False),  # divided by the batch's deviation, or by nothing
        ("three groups shaped", lambda a: a + (np.arange(64) < 3)[:, None], False),
        ("not centred", lambda a: a + 1.0, True),
        ("negated", lambda a: -a, True),
        ("of other sequences", lambda a: np.roll(a, 1, axis=1), True),
    ],
)
def test_advantages_that_do_not_follow_from_rewards(tmp_path: Path, name: str, change: Any, fault: bool):
    report = advantages(sample(), change).check(tmp_path)
    evidence = report.rule(NAME).evidence["advantages"]
    assert evidence["groups"] == 64 and evidence["group_size"] == 8
    if fault:
        warned(report, NAME)
        assert len(evidence["rows"][0]["rewards"]) == 8 and evidence["share"] > 0.05
    else:
        sound(report)


@pytest.mark.parametrize(
    ("name", "options", "judged"),
    [
        ("rloo", {"beta": 0.0}, True),
        ("rloo", {"beta": 0.04}, False),
        ("grpo", {"beta": 0.04}, True),  # its KL term is in the loss
        ("grpo", {"algorithm.use_kl_in_reward": True}, False),
        ("rloo", {"reward_clip_range": [-1, 1]}, False),
        ("grpo", {"multi_objective_aggregation": "normalize_then_sum"}, False),
        ("ppo", {}, False),
    ],
)
def test_advantages_are_judged_where_they_are_of_the_logged_rewards(
    tmp_path: Path, name: str, options: dict[str, Any], judged: bool
):
    algorithm = Algorithm(name=name, options={"num_generations": 8, **options})
    report = advantages(sample(), lambda a: a + 1.0).declaring(algorithm=algorithm).check(tmp_path)
    assert (report.rule(NAME).passed is False) is judged


@pytest.mark.parametrize(("outside", "fault"), [(0.0, False), (0.5, True)])
def test_an_advantage_on_tokens_outside_the_loss(tmp_path: Path, outside: float, fault: bool):
    # ROLL#444: what the mask should remove would move the weights.
    c = sample()
    mask = np.arange(len(c.number)) % 7 != 3
    mask[c.starts] = True
    varying = np.random.default_rng(0).normal(0, 1, len(c.number)).astype(np.float32)
    report = c.with_tokens(mask=mask, advantage=np.where(mask, varying, outside).astype(np.float32)).check(tmp_path)
    told = report.rule(NAME).evidence["masked_advantages"]
    assert told["sequences"] > 100 and (told["wrong"] > 0) is fault
    if fault:
        warned(report, NAME)
        assert told["rows"][0]["advantage"] == 0.5


def test_one_advantage_over_the_whole_sequence_is_masked_later(tmp_path: Path):
    c = sample()
    mask = np.arange(len(c.number)) % 7 != 3
    flat = np.random.default_rng(0).normal(0, 1, 512).astype(np.float32)[c.number]
    sound(c.with_tokens(mask=mask, advantage=flat).check(tmp_path))


# --- rule 30 -------------------------------------------------------------------------------------------------------


def outliers(prompts: int, copies: bool = False, size: float = 1.0) -> Columns:
    """120 long sequences of 30 prompts; all answers to some of the prompts differ far more than the others."""
    c = sample()
    length = np.bincount(c.number)
    c = selected(c, np.flatnonzero(length >= 20)[:120])
    prompt = np.arange(120) % 30
    c = c.with_rows(group_id=[f"g{i}" for i in prompt], prompt_ids=None, num_tokens=None, advantage=None)
    c.steps = 4
    return noisy(c, prompt[c.number] < prompts, size)


def test_the_same_prompts_again_and_again(tmp_path: Path):
    c = outliers(4)
    # One prompt has one name in all steps only where its ids are logged.
    c = c.with_rows(prompt_ids=[[int(g[1:])] * 3 for g in c.rows["group_id"]])
    c = c.with_tokens(position=c["position"] - c["position"][c.starts][c.number] + 3)
    report = c.check(tmp_path)
    warned(report, "outlier-sequences")
    evidence = report.rule("outlier-sequences").evidence
    assert evidence["share_above"] == pytest.approx(4 / 30, abs=0.03) and evidence["repeat_z"] > 5
    assert {"step", "sequence", "mean_abs_over_expected"} == set(evidence["rows"][0])


def test_large_sequences_without_a_pattern_are_no_finding(tmp_path: Path):
    c = outliers(0)
    c = c.with_rows(prompt_ids=[[int(g[1:])] * 3 for g in c.rows["group_id"]])
    c = c.with_tokens(position=c["position"] - c["position"][c.starts][c.number] + 3)
    rng = np.random.default_rng(0)
    report = noisy(c, rng.permutation(np.arange(120) < 12)[c.number], 1.0).check(tmp_path)
    assert report.rule("outlier-sequences").passed is True
    assert "not by prompt" in report.rule("outlier-sequences").detail


def test_copies_of_one_rollout_are_one_rollout(tmp_path: Path):
    """A rollout that is used in four steps repeats its prompt, whatever made it differ."""
    c = selected(sample(), np.flatnonzero(np.bincount(sample().number) >= 20)[:60])
    c = noisy(c, c.number < 2, 1.0)
    four = selected(c, np.tile(np.arange(60), 4)).with_rows(uid=None, advantage=None)
    four.steps = 4
    report = four.check(tmp_path)
    sound(report)
    assert report.rule("outlier-sequences").evidence["sequences"] == 60
