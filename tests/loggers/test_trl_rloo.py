"""RLOO through the same hook: sums over sequences where TRL has sums, tokens where its forward passes show them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from timscope.data import open_run

pytest.importorskip("trl")

from trl_jobs import fingerprint, rows, score, train

JOBS: dict[str, dict[str, Any]] = {
    "hf": {"vllm": False, "gradient_accumulation_steps": 2, "logging_steps": 2, "beta": 0.0},
    "vllm-two-iterations": {"vllm": True, "gradient_accumulation_steps": 2, "num_iterations": 2, "beta": 0.0},
}


@pytest.fixture(scope="module", params=list(JOBS))
def job(request: Any, tmp_path_factory: Any) -> Any:
    folder = tmp_path_factory.mktemp(request.param)
    trainer, versions = train(folder, hook=True, rloo=True, **JOBS[request.param])
    with open_run(folder / "run") as run:
        yield JOBS[request.param], trainer, versions, run


def test_final_weights_are_the_same_bits(job: Any, tmp_path: Path) -> None:
    options, hooked, _, _ = job
    plain, _ = train(tmp_path, hook=False, rloo=True, **options)
    assert fingerprint(plain.model) == fingerprint(hooked.model)


def test_rows_are_what_the_trainer_computed(job: Any) -> None:
    options, _, versions, run = job
    assert run.complete_steps == [1, 2, 3, 4] and run.problems == []
    assert run.manifest.algorithm.name == "rloo" and run.manifest.algorithm.options["num_generations"] == 4
    seen = 0
    for row, tokens in rows(run):
        ids, start = row["prompt_ids"] + tokens["token_id"].to_list(), len(row["prompt_ids"])
        now, then = (score(versions.states[v], ids, start, 0.9) for v in (row["step"] - 1, row["weight_version"]))
        np.testing.assert_allclose(tokens["loss_logprob"].to_numpy(), now, atol=2e-5)
        np.testing.assert_allclose(tokens["old_logprob"].to_numpy(), then, atol=2e-5)
        assert row["old_logprob_sum"] == pytest.approx(float(tokens["old_logprob"].sum()), abs=1e-4)
        seen += 1
    assert seen == 4 * 8
    # RLOO asks the engine for no log-probs; where the engine gave its prompts they are there.
    assert run.tokens()["rollout_logprob"].is_null().all()
    assert run.sequences()["engine_prompt_ids"].is_null().all() != options["vllm"]
    assert "old_logprob_sum" in run.sequences().columns


def test_the_steps_own_loss_is_the_mean_of_its_micro_batches(job: Any) -> None:
    """RLOO scales its loss after the fact, so a step's loss is not the sum that it is for GRPO."""
    options, trainer, _, run = job
    every = options.get("logging_steps", 1)
    losses = run.steps()["loss"].to_list()
    logged = [e["loss"] for e in trainer.state.log_history if "grad_norm" in e]
    assert [np.mean(losses[i : i + every]) for i in range(0, 4, every)] == pytest.approx(logged, rel=1e-5, abs=1e-7)


def test_advantages_leave_one_out(job: Any) -> None:
    _, _, _, run = job
    first = run.sql("SELECT DISTINCT uid, group_id, reward, advantage FROM sequences")
    for _, group in first.group_by("group_id"):
        reward, advantage = group["reward"].to_numpy(), group["advantage"].to_numpy()
        assert len(reward) == 4
        np.testing.assert_allclose(advantage, reward - (reward.sum() - reward) / 3, atol=1e-5)


def test_reference_and_truncated_rows(tmp_path: Path) -> None:
    import tiny_grpo

    tiny_grpo.model().save_pretrained(tmp_path / "model")
    options = {"policy": str(tmp_path / "model"), "beta": 0.1, "mask_truncated_completions": True, "max_steps": 2}
    _, versions = train(tmp_path, hook=True, rloo=True, vllm=True, gradient_accumulation_steps=2, **options)
    with open_run(tmp_path / "run") as run:
        kinds = set()
        for row, tokens in rows(run):
            ids, start = row["prompt_ids"] + tokens["token_id"].to_list(), len(row["prompt_ids"])
            kinds.add(row["finish_reason"])
            if row["finish_reason"] == "length":  # TRL's sum over nothing is 0.0, which nobody measured
                assert row["old_logprob_sum"] is None and tokens["ref_logprob"].is_null().all()
            else:
                first = score(versions.states[0], ids, start, 0.9)
                np.testing.assert_allclose(tokens["ref_logprob"].to_numpy(), first, atol=2e-5)
        assert kinds == {"length", "eos"}
