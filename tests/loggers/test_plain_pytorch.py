"""The plain-PyTorch example does what it says: it learns, records every column, and the run can be judged."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from timscope.analysis.check import run_checks
from timscope.analysis.verdict import diagnose
from timscope.data import open_run
from timscope.loggers.examples.plain_pytorch import GROUP, PROMPT_LENGTH, PROMPTS, RESPONSE_LENGTH, train

STEPS = 4


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    path = tmp_path_factory.mktemp("plain") / "run"
    return path, train(path, STEPS)


def test_everything_is_recorded(recorded: tuple[Path, list[float]]) -> None:
    path, rewards = recorded
    with open_run(path) as run:
        assert run.problems == [] and run.complete_steps == list(range(1, STEPS + 1))
        tokens = run.tokens()
        assert len(tokens) == STEPS * PROMPTS * GROUP * RESPONSE_LENGTH
        for column in ("rollout_logprob", "old_logprob", "loss_logprob", "entropy", "mask"):
            assert tokens[column].null_count() == 0, column
        assert tokens["position"].min() == PROMPT_LENGTH
        assert run.sql("SELECT avg(reward) AS r FROM sequences GROUP BY step ORDER BY step")["r"].to_list() == (
            pytest.approx(rewards)
        )
        groups = run.sql("SELECT count(*) AS n, sum(advantage) AS a FROM sequences GROUP BY group_id")
        assert groups["n"].to_list() == [GROUP] * (STEPS * PROMPTS)
        assert max(abs(a) for a in groups["a"].to_list()) < 1e-3
        steps = run.steps()
        assert steps["weight_version"].to_list() == list(range(STEPS))
        assert all(math.isfinite(x) and x > 0 for x in steps["grad_norm"].to_list())
        total = run.sql("SELECT norm FROM gradients WHERE parameter_group = 'total' ORDER BY step")["norm"].to_list()
        assert total == pytest.approx(steps["grad_norm"].to_list(), rel=1e-4)


def test_the_log_probs_are_at_the_tokens_they_score(recorded: tuple[Path, list[float]]) -> None:
    """A bfloat16 engine and a float32 trainer differ a little; shifted by one token they would differ by nats."""
    with open_run(recorded[0]) as run:
        gap = run.sql("SELECT avg(abs(old_logprob - rollout_logprob)) AS gap FROM tokens")["gap"][0]
        shifted = run.sql(
            "SELECT avg(abs(next - rollout_logprob)) AS gap FROM (SELECT *, lead(old_logprob) OVER "
            "(PARTITION BY step, sequence ORDER BY position) AS next FROM tokens) WHERE next IS NOT NULL"
        )["gap"][0]
        assert 0 < gap < 0.05 < 0.3 < shifted
        same = run.sql("SELECT avg((old_logprob = loss_logprob)::INT) AS same FROM tokens")["same"][0]
        assert same > 0.99, "on policy, the loss sees the weights that old was scored under"


def test_the_run_can_be_judged(recorded: tuple[Path, list[float]]) -> None:
    with open_run(recorded[0]) as run:
        verdict = diagnose(run)
        assert verdict.verdict == "tim"
        report = run_checks(run)
        assert report.comparable, [r for r in report.rules if r.passed is False]


def test_without_a_run_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with_run, without = train(tmp_path / "run", 2), train(None, 2)
    assert with_run == without, "recording changes nothing"
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
