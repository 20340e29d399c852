"""The recording example: its rewards say what they claim, and the sample run in the package is what it recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

import timscope.data
from timscope.data import open_run
from timscope.loggers.examples.record_smollm2 import correct, plain, questions

SAMPLE = Path(timscope.data.__file__).parent / "samples" / "smollm2-grpo"


def test_rewards() -> None:
    texts = ["12 + 2 = 14.", "14", "12 + 2 equals 14.", "12 + 2 = 34", "no number", ""]
    completions = [[{"role": "assistant", "content": t}] for t in texts]
    assert correct(completions, answer=[14] * 6) == [1, 1, 1, 0, 0, 0]
    assert plain(completions) == [1, 1, 0, 1, 0, 0]


def test_questions_are_the_same_every_time() -> None:
    first = questions(5)
    assert first == questions(5) and first[0] == questions(64)[0]
    assert all(2 <= q["answer"] <= 40 for q in first)


def test_the_sample_is_whole() -> None:
    """Every witness of a bfloat16 vLLM rollout under a float32 trainer, and TRL's own figures to check them against."""
    with open_run(SAMPLE) as run:
        assert run.problems == [] and run.complete_steps == list(range(1, 33))
        assert (run.manifest.rollout.name, run.manifest.rollout.dtype) == ("vllm", "bfloat16")
        assert run.manifest.trainer.dtype == "float32"
        assert run.manifest.weights[0].version == 0 and run.manifest.weights[0].source == "smollm2"
        nulls = run.tokens().null_count()
        assert all(nulls[c][0] == 0 for c in ("rollout_logprob", "old_logprob", "loss_logprob", "entropy", "mask"))
        assert nulls["ref_logprob"][0] == len(run.tokens())  # no reference model: NULL, not zero
        steps = run.steps()
        ours = run.sql(
            "SELECT step, avg(gap) AS mean, max(gap) AS max FROM "
            "(SELECT step, abs(old_logprob - rollout_logprob) AS gap FROM tokens WHERE mask) GROUP BY 1 ORDER BY 1"
        )
        for name in ("mean", "max"):
            logged = steps[f"sampling/sampling_logp_difference/{name}"].to_list()
            assert ours[name].to_list() == pytest.approx(logged, rel=1e-6)
        reward = steps["reward"].to_list()
        assert sum(reward[-8:]) > 2 * sum(reward[:8]), "the run learned something"
