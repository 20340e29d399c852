"""Negative controls: a real run and simulated ones on which nothing may fail; and the JSON contract."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from checking import failed, sound
from recorded import SAMPLE, resampled, sample
from simulate import simulated

from timscope.analysis.check import RULES, run_checks
from timscope.data import open_run


@pytest.fixture(scope="module")
def report():
    with open_run(SAMPLE) as run:
        return run_checks(run)


def test_every_rule_holds_on_the_real_run(report):
    sound(report)
    assert [rule.name for rule in report.rules] == list(RULES)
    # engine_prompt_ids were not logged, yet the run is long enough to say something; nothing else is undecided.
    assert all(rule.passed for rule in report.rules)
    assert report.context["tokens"] == 9218 and report.context["right"] == "old_logprob"
    assert report.context["mean_weight"]["valid"] is True


def test_json_is_the_contract_and_strict(report):
    said = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert said["comparable"] is True
    for rule in said["rules"]:
        assert {"name", "passed", "severity", "detail", "evidence", "remedy"} == set(rule)
        assert rule["detail"] and "\n" not in rule["detail"] and isinstance(rule["evidence"], dict)


@pytest.mark.parametrize("noise", [0.02, 0.1])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_both_sides_at_one_temperature_are_sound(tmp_path: Path, noise: float, temperature: float):
    rng = np.random.default_rng(5)
    sound(simulated(rng, noise=noise, temperature=temperature).check(tmp_path))


def test_two_exact_engines_are_not_called_a_copy(tmp_path: Path):
    c = sample()
    same = c.with_tokens(old_logprob=c["rollout_logprob"].copy(), loss_logprob=c["rollout_logprob"].copy())
    report = same.check(tmp_path)
    sound(report)
    assert report.context["mean_abs"] == 0.0 and report.rule("old-copies-rollout").passed is True


def test_nothing_is_decided_where_nothing_can_be(tmp_path: Path):
    tiny = resampled(np.random.default_rng(0), 20)
    report = tiny.check(tmp_path)
    assert failed(report) == set() and report.comparable
    for name in ("storage-dtype", "units", "temperature-one-sided", "top-p-renormalisation", "outlier-sequences"):
        assert report.rule(name).passed is None


@pytest.mark.parametrize("column", ["rollout_logprob", "old_logprob"])
def test_without_a_column_the_run_is_not_comparable_and_says_which_is_missing(tmp_path: Path, column: str):
    report = sample().with_tokens(**{column: None, "loss_logprob": None}).check(tmp_path)
    assert not report.comparable and column in report.reason
    assert failed(report) == set()
    for name in ("off-by-one", "temperature-one-sided", "penalties"):
        assert report.rule(name).passed is None and column in report.rule(name).detail
    assert report.rule("integrity").passed is True


def test_without_entropy_the_rules_that_need_it_say_so(tmp_path: Path):
    report = sample().with_tokens(entropy=None).check(tmp_path)
    sound(report)
    assert report.rule("temperature-one-sided").passed is None
    assert "entropy" in report.rule("temperature-one-sided").detail
    assert report.rule("top-p-renormalisation").passed is True


def test_the_in_loss_log_prob_is_used_where_old_is_absent(tmp_path: Path):
    report = sample().with_tokens(old_logprob=None).check(tmp_path)
    sound(report)
    assert report.context["right"] == "loss_logprob"


def test_order_of_sequences_does_not_matter(tmp_path: Path):
    full = sample()
    turned = sample()
    turned.number = int(full.number.max()) - full.number
    turned.rows = {k: v[::-1] for k, v in full.rows.items()}
    a, b = full.check(tmp_path / "a"), turned.check(tmp_path / "b")
    sound(b)
    for name in ("units", "temperature-one-sided"):
        left, right = (r.rule(name).evidence for r in (a, b))
        for key, value in left.items():
            if isinstance(value, float) and key != "slope":  # bins of H break ties by order
                assert right[key] == pytest.approx(value, rel=1e-6), key
