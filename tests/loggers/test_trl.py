"""The TRL hook on a real GRPOTrainer: it changes nothing, and what it writes is what TRL computed."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from timscope.data import open_run
from timscope.loggers import NullRecorder, attach

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

import tiny_grpo  # noqa: E402
from trl_jobs import fingerprint, rows, score, train  # noqa: E402

from timscope.data.digest import fingerprint as weights_fingerprint  # noqa: E402
from timscope.loggers.weights import weight_items, weights_digest  # noqa: E402

JOBS: dict[str, dict[str, Any]] = {
    "hf": {"vllm": False, "gradient_accumulation_steps": 2},
    "hf-two-iterations": {"vllm": False, "num_iterations": 2, "gradient_accumulation_steps": 2},
    "vllm": {"vllm": True, "gradient_accumulation_steps": 2},
    "vllm-tokens-two-iterations": {
        "vllm": True,
        "num_iterations": 2,
        "gradient_accumulation_steps": 1,
        "steps_per_generation": 2,
        "vllm_importance_sampling_mode": "token_truncate",
    },
}


@pytest.fixture(scope="module", params=list(JOBS))
def job(request: Any, tmp_path_factory: Any) -> Any:
    """A recorded job: (its options, trainer, weights by version, run)."""
    folder = tmp_path_factory.mktemp(request.param)
    trainer, versions = train(folder, hook=True, **JOBS[request.param])
    with open_run(folder / "run") as run:
        yield JOBS[request.param], trainer, versions, run


def test_final_weights_are_the_same_bits(job: Any, tmp_path: Path) -> None:
    options, hooked, _, _ = job
    plain, _ = train(tmp_path, hook=False, **options)
    assert fingerprint(plain.model) == fingerprint(hooked.model)
    drop = ("step_time", "train_runtime", "train_samples_per_second", "train_steps_per_second")
    logs = [[{k: v for k, v in e.items() if k not in drop} for e in t.state.log_history] for t in (plain, hooked)]
    assert logs[0] == logs[1]


def test_all_steps_complete_and_weights_digested(job: Any) -> None:
    _, trainer, versions, run = job
    assert run.complete_steps == [1, 2, 3, 4] and run.problems == []
    first = tiny_grpo.model()
    first.load_state_dict(versions.states[0])
    assert [(w.version, w.digest, w.source) for w in run.manifest.weights] == [(0, weights_digest(first), "tiny")]
    assert weights_digest(trainer.model) != weights_digest(first)
    said = run.steps()["weight_digest"].to_list()
    for number, digest in enumerate(said):
        first.load_state_dict(versions.states[number])
        assert digest == weights_fingerprint(weight_items(first)), "the version that the step trained"
    assert len(set(said)) == 4 and run.steps()["resume"].to_list() == [0] * 4
    assert run.manifest.sampling.temperature == run.manifest.logprobs["old_logprob"].temperature == 0.9
    assert run.manifest.trainer.dtype == "float32" and run.manifest.framework.version


def test_rows_match_after_shuffling(job: Any) -> None:
    """Scored again from the recorded ids under the recorded version, every row gives the recorded log-probs."""
    options, trainer, versions, run = job
    seen = 0
    for row, tokens in rows(run):
        ids = row["prompt_ids"] + tokens["token_id"].to_list()
        start = len(row["prompt_ids"])
        assert tokens["position"].to_list() == list(range(start, len(ids))) and row["num_tokens"] == len(tokens)
        now = score(versions.states[row["step"] - 1], ids, start, trainer.temperature)
        np.testing.assert_allclose(tokens["loss_logprob"].to_numpy(), now, atol=2e-5)
        has_old = options["vllm"] or options.get("num_iterations", 1) > 1
        assert tokens["old_logprob"].is_null().all() != has_old
        if has_old:
            then = score(versions.states[row["weight_version"]], ids, start, trainer.temperature)
            np.testing.assert_allclose(tokens["old_logprob"].to_numpy(), then, atol=2e-5)
        assert tokens["rollout_logprob"].is_null().all() != options["vllm"]
        seen += 1
    per_step = 4 * options["gradient_accumulation_steps"]
    assert seen == 4 * per_step


def test_rollout_columns_are_what_the_engine_said(job: Any) -> None:
    options, _, _, run = job
    if not options["vllm"]:
        pytest.skip("no rollout engine")
    tokens = run.tokens()
    gap = (tokens["old_logprob"] - tokens["rollout_logprob"]).abs().drop_nans()
    assert 1e-3 < float(gap.mean()) < 1.0, "a bfloat16 engine under a float32 trainer"
    # TRL hands on a NaN of the engine as None; it comes back as the NaN that it was, never as 0.0 or NULL.
    assert 0 < tokens["rollout_logprob"].is_nan().sum() < len(tokens) / 4
    assert tokens.filter(pl.col("rollout_logprob").is_nan() & (pl.col("token_id") % 5 != 0)).is_empty()
    assert tokens["rollout_logprob"].null_count() == tokens["rollout_is_weight"].null_count() == 0
    sequences = run.sequences()
    assert sequences["engine_prompt_ids"].to_list() == sequences["prompt_ids"].to_list()


def test_agrees_with_what_trl_logged(job: Any) -> None:
    options, trainer, _, run = job
    steps = run.steps()
    logged = [e for e in trainer.state.log_history if "grad_norm" in e]
    names = ("loss", "grad_norm", "learning_rate", "reward", "entropy", "rewards/digits/mean", "clip_ratio/low_mean")
    for name in names:
        # A step that reuses rollouts logs no reward of its own: NULL, not zero.
        pairs = list(zip(steps[name].to_list(), [e.get(name) for e in logged], strict=True))
        assert all(ours == theirs or ours == pytest.approx(theirs, rel=1e-6, abs=1e-9) for ours, theirs in pairs), name
    total = run.gradients().filter(pl.col("parameter_group") == "total")
    assert total["norm"].to_list() == pytest.approx([e["grad_norm"] for e in logged], rel=1e-5)
    assert max(total["norm"]) > 1.0, "or clipping was never tested"
    plan, sketches = run.manifest.sketch, total["sketch"].to_list()
    assert plan is not None and [len(s) for s in sketches] == [plan.buckets] * 4
    for sketch, entry in zip(sketches, logged, strict=True):  # a sketch keeps the norm, up to its own noise
        assert np.linalg.norm(sketch) == pytest.approx(entry["grad_norm"], rel=0.25)
    # One generation a step: TRL's own mismatch metrics come out of the recorded tokens.
    if options["vllm"] and options.get("num_iterations", 1) == 1:
        ours = run.sql(
            "SELECT avg(abs(old_logprob - rollout_logprob)) AS mean, max(abs(old_logprob - rollout_logprob)) AS max "
            "FROM tokens WHERE mask AND isfinite(rollout_logprob) GROUP BY step ORDER BY step"
        )
        for name in ("mean", "max"):
            theirs = [e[f"sampling/sampling_logp_difference/{name}"] for e in logged]
            assert ours[name].to_list() == pytest.approx(theirs, rel=1e-5), name
    entropy = run.sql("SELECT avg(entropy) AS h FROM tokens WHERE mask GROUP BY step ORDER BY step")["h"]
    if options["gradient_accumulation_steps"] == 1:  # TRL logs a mean of micro-batch means
        assert entropy.to_list() == pytest.approx([e["entropy"] for e in logged], rel=1e-4)


def test_rewards_and_advantages(job: Any) -> None:
    _, _, _, run = job
    for row, _ in rows(run):
        text = row["completion"].replace("<pad>", "").replace("<eos>", "").strip()
        said = [row["reward/digits"], row["reward/picky"]]
        assert row["reward/digits"] == pytest.approx(sum(c.isdigit() for c in text) / 8)
        assert row["reward"] == pytest.approx(sum(s for s in said if s is not None))
        assert (row["reward/picky"] is None) == text.startswith(tuple("aeiou"))
        assert row["finish_reason"] == ("eos" if row["completion"].endswith("<eos>") else "length")
    groups = run.sql("SELECT uid, any_value(group_id) AS g, any_value(advantage) AS a FROM sequences GROUP BY uid")
    sums = groups.group_by("g").agg(pl.col("a").sum(), pl.len())
    assert (sums["len"] == 4).all() and sums["a"].abs().max() < 1e-4


def test_an_old_rollout_comes_again_under_its_uid(job: Any) -> None:
    options, _, _, run = job
    if options.get("num_iterations", 1) == 1:
        pytest.skip("one iteration")
    uses = run.sql(
        "SELECT uid, count(*) AS uses, count(DISTINCT weight_version) AS versions, max(step) - min(step) AS apart "
        "FROM sequences GROUP BY uid"
    )
    assert (uses["uses"] == 2).all() and (uses["versions"] == 1).all() and (uses["apart"] >= 1).all()
    stale = run.sql(
        "SELECT s.step, any_value(st.weight_version - s.weight_version) AS age FROM sequences s "
        "JOIN steps st USING (step) GROUP BY 1 ORDER BY 1"
    )
    micro_batches = options["num_iterations"] * options.get("steps_per_generation", 2)
    period = micro_batches // options["gradient_accumulation_steps"]
    assert stale["age"].to_list() == [(n - 1) % period for n in (1, 2, 3, 4)]


def test_two_generations_in_one_optimizer_step(tmp_path: Path) -> None:
    train(tmp_path, hook=True, vllm=True, gradient_accumulation_steps=4, steps_per_generation=2, max_steps=2)
    with open_run(tmp_path / "run") as run:
        for step in (1, 2):
            rows_of = run.sequences([step])
            assert rows_of["sequence"].to_list() == list(range(16)) and rows_of["uid"].n_unique() == 16
            assert sorted(set(rows_of["micro_batch"])) == [0, 1, 2, 3]


def test_truncated_completions_that_trl_masks(tmp_path: Path) -> None:
    """The trainer's forward never saw them: no trainer log-probs, and out of the loss."""
    train(tmp_path, hook=True, vllm=True, gradient_accumulation_steps=2, mask_truncated_completions=True, max_steps=2)
    with open_run(tmp_path / "run") as run:
        cut = run.sql(
            "SELECT mask, old_logprob, loss_logprob, entropy, finish_reason "
            "FROM tokens JOIN sequences USING (step, sequence) WHERE token_id <> 0 OR finish_reason = 'eos'"
        )
    masked = cut.filter(~pl.col("mask"))
    assert len(masked) and set(masked["finish_reason"]) == {"length"}
    assert all(masked[c].is_null().all() for c in ("old_logprob", "loss_logprob", "entropy"))
    assert not cut.filter(pl.col("mask"))["loss_logprob"].is_null().any()


def test_reference_log_probs(tmp_path: Path) -> None:
    tiny_grpo.model().save_pretrained(tmp_path / "model")
    policy = {"policy": str(tmp_path / "model"), "beta": 0.1}
    _, versions = train(tmp_path, hook=True, vllm=True, gradient_accumulation_steps=2, max_steps=2, **policy)
    with open_run(tmp_path / "run") as run:
        for row, tokens in rows(run):
            ids = row["prompt_ids"] + tokens["token_id"].to_list()
            first = score(versions.states[0], ids, len(row["prompt_ids"]), 0.9)
            np.testing.assert_allclose(tokens["ref_logprob"].to_numpy(), first, atol=2e-5)
        assert run.manifest.model.name == "model" and "kl" in run.steps().columns


def test_evaluation_and_sparse_logging(tmp_path: Path) -> None:
    """Evaluation adds its metrics to the step and no rows; a step that TRL does not log still has its own loss."""
    options = {"evaluate": True, "eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 4}
    trainer, _ = train(tmp_path, hook=True, vllm=True, gradient_accumulation_steps=2, logging_steps=2, **options)
    with open_run(tmp_path / "run") as run:
        assert run.sql("SELECT count(*) AS n FROM sequences GROUP BY step")["n"].to_list() == [8] * 4
        steps = run.steps()
        assert steps["eval_loss"].is_not_null().to_list() == [False, True, False, True]
        assert steps["reward"].is_not_null().to_list() == [False, True, False, True]
        logged = [e["loss"] for e in trainer.state.log_history if "grad_norm" in e]
        assert steps["grad_norm"].null_count() == 0
        means = [sum(steps["loss"].to_list()[i : i + 2]) / 2 for i in (0, 2)]
        assert means == pytest.approx(logged, rel=1e-5)


def test_close_restores_the_trainer(tmp_path: Path) -> None:
    trainer = tiny_grpo.trainer(tmp_path / "out", vllm=False)
    before, callbacks = dict(vars(trainer)), list(trainer.callback_handler.callbacks)
    recorder = attach(trainer, tmp_path / "run")
    assert vars(trainer)["_compute_loss"].__qualname__.startswith("Hooks.")
    recorder.close()
    recorder.close()
    assert dict(vars(trainer)) == before and "clip_grad_norm_" not in vars(trainer.accelerator)
    assert trainer.callback_handler.callbacks == callbacks
    assert isinstance(attach(trainer, None), NullRecorder)
    assert dict(vars(trainer)) == before


def test_a_broken_hook_leaves_training_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain, _ = train(tmp_path / "plain", hook=False, vllm=True, max_steps=2)

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("made to fail")

    monkeypatch.setattr("timscope.loggers.trl_hooks.Generation", broken)
    monkeypatch.setattr("timscope.loggers.trl_gradients.gradient_groups", broken)
    torch.use_deterministic_algorithms(True)
    try:
        trainer = tiny_grpo.trainer(tmp_path / "out", vllm=True, max_steps=2)
        with caplog.at_level(logging.WARNING, "timscope"):
            attach(trainer, tmp_path / "run")
            trainer.train()
    finally:
        torch.use_deterministic_algorithms(False)
    assert fingerprint(trainer.model) == fingerprint(plain.model)
    told = [r.getMessage() for r in caplog.records if r.name == "timscope"]
    assert len(told) == 2 and all("made to fail" in t and "training goes on" in t for t in told)
    with open_run(tmp_path / "run") as run:
        assert len(run.manifest.recorder.errors) == 2
        assert run.complete_steps == [1, 2] and len(run.tokens()) == 0
        assert run.steps()["grad_norm"].is_not_null().all()
