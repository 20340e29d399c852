"""False-alarm calibration: parts of the real run, many and of all sizes, on which no rule may accuse.

A test of silence passes by itself where the rules say nothing at all. So it also counts how often they decided, and
test_the_same_parts_with_a_fault asks whether the rules hear the faults in parts of that size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from checking import failed
from inject import R, T, constant, inserted, offset, repeated_ids, rounded, scaled, shifted, tempered
from recorded import Columns, resampled, whole_steps

from timscope.analysis.check import RULES

# Rules that need more than a few hundred tokens, or what single sequences do not bring.
LATE = {"different-inputs", "outlier-sequences", "estimator-artefact"}
SIZES = {200: 40, 400: 30, 800: 30, 1600: 20, 3000: 20, 9000: 10}


@pytest.mark.parametrize("tokens", SIZES)
def test_no_part_of_the_real_run_is_accused(tmp_path: Path, tokens: int):
    """150 in all, sequences drawn with replacement."""
    decided: Counter[str] = Counter()
    for i in range(SIZES[tokens]):
        report = resampled(np.random.default_rng((tokens, i)), tokens).check(tmp_path / str(i))
        assert failed(report) == set() and report.comparable, (i, report.reason, failed(report))
        assert report.context["tokens"] >= tokens
        decided.update(rule.name for rule in report.rules if rule.passed)
        decided["weights"] += report.context["mean_weight"]["valid"] is True
    share = {name: decided[name] / SIZES[tokens] for name in (*RULES, "weights")}
    # 200 tokens are about 11 answers: not all of them have 8 or enough coarse values.
    least = {"storage-dtype": 0.0} if tokens == 200 else {}
    for name in set(share) - LATE:
        assert share[name] >= least.get(name, 0.85 if tokens == 200 else 1.0), (name, share[name])
    if tokens >= 3000:
        assert share["different-inputs"] >= 0.3
    if tokens >= 9000:
        assert share["outlier-sequences"] == share["different-inputs"] == 1.0


@pytest.mark.parametrize("steps", [1, 2, 4, 8, 16])
def test_whole_steps_with_all_that_was_logged_are_not_accused(tmp_path: Path, steps: int):
    """Advantages, the framework's metrics, ranks and versions are in: rule 29 and rule 1 decide here."""
    for i in range(4):
        report = whole_steps(np.random.default_rng((steps, i)), steps).check(tmp_path / str(i))
        assert failed(report) == set() and report.comparable, (i, report.reason)
        rule = report.rule("estimator-artefact")
        assert rule.passed is True and rule.evidence["advantages"]["groups"] == 2 * steps
        assert all(metric["steps"] == steps for metric in rule.evidence["metrics"].values())
        assert len(rule.evidence["metrics"]) == 2


def some(c: Columns) -> np.ndarray:
    return np.random.default_rng(1).random(len(c.number)) < 0.02


FAULTS: dict[str, tuple[str, Callable[[Columns], Columns]]] = {
    "shift": ("off-by-one", lambda c: shifted(c, 1)),
    "insertion": ("inserted-token", lambda c: inserted(c, np.arange(c.number.max() + 1))),
    "base two": ("units", lambda c: scaled(c, 1 / math.log(2))),
    "temperature": ("temperature-one-sided", lambda c: tempered(c, 0.8, "rollout")),
    "division": ("logprob-divided-by-temperature", lambda c: scaled(c, 1 / 0.8)),
    "zeros": ("placeholder", lambda c: constant(c, 0.0, some(c))),
    "penalty": ("penalties", lambda c: offset(c, repeated_ids(c), -0.3)),
    "bf16": ("storage-dtype", lambda c: rounded(c, "bf16")),
    "other rows": ("different-inputs", lambda c: c.with_tokens(**{T: c[T][::-1].copy(), "loss_logprob": None})),
    "nan": ("non-finite", lambda c: constant(c, np.nan, np.array([7]))),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_same_parts_with_a_fault_are_accused_of_it_alone(tmp_path: Path, fault: str):
    name, put_in = FAULTS[fault]
    found = Counter[str]()
    for i in range(5):
        part = resampled(np.random.default_rng((800, i)), 800)
        found.update(failed(put_in(part).check(tmp_path / str(i))))
    assert found[name] >= 4 and set(found) == {name}, found


def test_an_offset_is_noticed_by_its_weights_alone(tmp_path: Path):
    part = resampled(np.random.default_rng(3), 3000)
    report = part.with_tokens(**{R: part[R] - np.float32(0.05)}).check(tmp_path)
    assert failed(report) == set() and not report.comparable and "E[w]" in report.reason
