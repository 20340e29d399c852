"""A TRL job that is stopped and goes on from its checkpoint into the same run; columns that fail on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from timscope.data import open_run

pytest.importorskip("trl")

import tiny_grpo
from trl_jobs import fingerprint, train

from timscope.loggers import attach


def test_a_resumed_job_goes_on_in_the_same_run(tmp_path: Path) -> None:
    options = {"vllm": True, "save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    for part in (1, 2):
        trainer = tiny_grpo.trainer(tmp_path / "out", **options)
        attach(trainer, tmp_path / "run", model_source="tiny", strict=True)
        if part == 1:
            trainer.args.max_steps = 3  # dies after step 3, whose work the checkpoint of step 2 does not hold
        trainer.train(resume_from_checkpoint=str(tmp_path / "out/checkpoint-2") if part == 2 else None)
    with open_run(tmp_path / "run") as run:
        steps = run.steps()
        assert run.complete_steps == [1, 2, 3, 4] and steps["resume"].to_list() == [0, 0, 0, 1]
        assert run.manifest.recorder.resumes == 1
        # Step 3 was trained twice: its first recording stays, and the run says so.
        assert run.problems == ["step 3 is already complete: its first recording is kept"]
        assert [(w.version, w.source) for w in run.manifest.weights] == [(0, "tiny"), (2, None)]
        assert all(w.digest for w in run.manifest.weights)
        assert run.sequences([4])["weight_version"].to_list() == [3] * 4 and run.sequences()["uid"].n_unique() == 16


class Broken:
    """A tokenizer copy that cannot decode."""

    def decode(self, *_: Any) -> list[str]:
        raise RuntimeError("made to fail")


def test_failures_on_the_writers_thread_cost_their_column_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, _ = train(tmp_path / "plain", hook=False, rloo=True, vllm=False, beta=0.0, max_steps=3)
    monkeypatch.setattr("timscope.loggers.trl_hooks.Texts", lambda _: Broken())
    torch = pytest.importorskip("torch")
    torch.use_deterministic_algorithms(True)
    try:
        trainer = tiny_grpo.trainer(tmp_path / "out", rloo=True, vllm=False, beta=0.0, max_steps=3)
        recorder = attach(trainer, tmp_path / "run")
        # Somebody scores a batch of their own first: the pass that the hook takes for the old log-probs is not it.
        generate = trainer._generate_and_score_completions
        score = trainer._get_per_token_logps_and_entropies

        def other(model: Any, ids: Any, *args: Any, **kwargs: Any) -> Any:
            result = score(model, ids, *args, **kwargs)
            if recorder_hooks.seen is not None and len(recorder_hooks.seen.scored) == 1:
                recorder_hooks.seen.scored[0] = recorder_hooks.seen.scored[0] * 2
            return result

        recorder_hooks = generate.__closure__[1].cell_contents
        trainer._get_per_token_logps_and_entropies = other
        trainer.train()
    finally:
        torch.use_deterministic_algorithms(False)
    assert fingerprint(trainer.model) == fingerprint(plain.model)
    assert len(recorder.errors) == 2
    with open_run(tmp_path / "run") as run:
        assert run.complete_steps == [1, 2, 3]
        assert any("'texts' is off: RuntimeError: made to fail" in p for p in run.problems)
        assert any("'old_logprob' is off" in p and "do not add up" in p for p in run.problems)
        assert run.sequences()["prompt"].is_null().all() and run.tokens()["old_logprob"].is_null().all()
        assert run.sequences()["old_logprob_sum"].null_count() == 0 and run.tokens()["loss_logprob"].null_count() == 0
