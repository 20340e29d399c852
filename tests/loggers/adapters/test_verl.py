"""The verl hooks against batches and trainers of verl 0.9.1's shape; test_verl_real.py has the real ones."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from marked import boom, check_tokens, never, padded, samples
from verl_shapes import Store, jagged, meta, proto, v0_modules, v1_module

from timscope.data import open_run
from timscope.loggers.adapters import verl_v0, verl_v1
from timscope.loggers.adapters.session import Session

ROOT = Path(__file__).parents[3]
ALL = {"rollout_logprob", "old_logprob", "ref_logprob", "entropy", "rollout_is_weight"}


def test_v1_rows_land_on_the_tokens_they_score(asked: Path, fresh: Session) -> None:
    batch = samples(5)
    store = Store(batch)
    module = v1_module(store)
    verl_v1.hook(module)
    versions = [(0, 0), (0, 0), (0, 1), (1, 1), (1, 1)]
    assert module.PPOTrainer().fit([meta(batch, versions, padding=3)]) == "done"
    assert fresh.recorder is None, "fit has ended, so the run is closed"
    check_tokens(asked, batch, ALL, step=1)
    assert store.asked and "values" not in store.asked[0], "only what is needed is fetched"
    with open_run(asked) as run:
        sequences = run.sql("SELECT * FROM sequences ORDER BY sequence")
        assert sequences["uid"].to_list()[:3] == ["prompt_0_0_0", "prompt_0_1_0", "prompt_1_0_0"]
        assert sequences["group_id"].to_list() == ["prompt_0", "prompt_0", "prompt_1", "prompt_1", "prompt_2"]
        assert sequences["weight_version"].to_list() == [0, 0, None, 1, 1]
        assert sequences["turns"].to_list() == [2, 3, 4, 5, 6]
        assert sequences["reward"].to_list() == sequences["reward/score"].to_list() == [s.reward for s in batch]
        assert sequences["advantage"].to_list() == [s.advantage for s in batch]
        step = run.steps().row(0, named=True)
        assert (step["grad_norm"], step["loss"], step["reward"], step["weight_version"]) == (1.25, 0.5, 0.5, 0)
        assert (step["timscope/mixed_weight_versions"], step["timscope/rejected_tokens"]) == (1, 1)
        manifest = run.manifest
        assert manifest.framework and manifest.framework.name == "verl" and manifest.recorder.errors == []
        assert (manifest.model.name, manifest.sampling.temperature, manifest.sampling.top_k) == ("Qwen3-0.6B", 0.7, 0)
        assert (manifest.rollout.name, manifest.trainer.name, manifest.trainer.dtype) == ("vllm", "fsdp", "bfloat16")
        assert (manifest.algorithm.loss_mode, manifest.algorithm.num_iterations) == ("recompute", 2)
        assert manifest.logprobs["rollout_logprob"].mode == "processed" and manifest.world_size == 1


def test_v1_advantage_goes_to_tokens_only_where_it_varies(asked: Path, fresh: Session) -> None:
    batch = samples(2)
    store = Store(batch)
    store.rows["prompt_0_1_0"]["advantages"] = torch.arange(len(batch[1].response), dtype=torch.float32)
    module = v1_module(store)
    verl_v1.hook(module)
    module.PPOTrainer().fit([meta(batch, [(0, 0)] * 2)])
    with open_run(asked) as run:
        assert run.sql("SELECT advantage FROM sequences")["advantage"].to_list() == [None, None]
        second = run.sql("SELECT advantage, mask FROM tokens WHERE sequence = 1 ORDER BY position")
        assert second["advantage"].to_list() == [float(i) if m else None for i, m in enumerate(batch[1].mask)]


def test_v1_without_optional_fields_and_in_bypass_mode(asked: Path, fresh: Session) -> None:
    batch = samples(3)
    store = Store(batch, without=("entropy", "ref_log_prob", "rollout_is_weights", "num_turns", "rm_scores"))
    module = v1_module(store)
    verl_v1.hook(module)
    module.PPOTrainer(bypass=True).fit([meta(batch, [(0, 0)] * 3)])
    check_tokens(asked, batch, {"rollout_logprob", "old_logprob"}, step=1)
    with open_run(asked) as run:
        assert run.manifest.algorithm.loss_mode == "bypass"
        assert run.sql("SELECT reward, turns FROM sequences")["reward"].to_list() == [None] * 3


def test_an_error_in_the_v1_hook_stays_there(asked: Path, fresh: Session) -> None:
    batch = samples(2)
    module = v1_module(SimpleNamespace(kv_batch_get=boom))
    verl_v1.hook(module)
    assert module.PPOTrainer().fit([meta(batch, [(0, 0)] * 2)] * 2) == "done"
    with open_run(asked) as run:
        assert run.steps()["grad_norm"].to_list() == [1.25, 1.25], "the metrics are there all the same"
        assert len(run.manifest.recorder.errors) == 1 and "boom" in run.manifest.recorder.errors[0]


def test_errors_of_verl_itself_pass_through_and_close_the_run(asked: Path, fresh: Session) -> None:
    module = v1_module(Store(samples(2)))
    module.PPOTrainer._compute_metrics = lambda self, batch, metrics, timing_raw, global_steps, epoch: boom()
    verl_v1.hook(module)
    with pytest.raises(RuntimeError, match="boom"):
        module.PPOTrainer().fit([meta(samples(2), [(0, 0)] * 2)])


def test_nothing_happens_unless_a_run_is_asked_for(fresh: Session, tmp_path: Path) -> None:
    module = v1_module(SimpleNamespace(kv_batch_get=never("TransferQueue")))
    verl_v1.hook(module)
    assert module.PPOTrainer().fit([meta(samples(2), [(0, 0)] * 2)]) == "done"
    assert fresh.recorder is None and list(tmp_path.iterdir()) == []


def legacy_step(batch: list, step: int):
    """What `_compute_old_log_prob` and `_update_actor` get in one step of the legacy trainer."""
    final = proto(batch, [(step - 1, step - 1)] * len(batch))
    width = final.batch["responses"].shape[1]
    scoring = SimpleNamespace(
        batch={"response_mask": padded([s.sampled for s in batch], width)},
        later={
            "old_log_probs": final.batch["old_log_probs"],
            "entropy": padded([s.column("entropy") for s in batch], width),
        },
    )
    return scoring, final


def test_legacy_rows_land_on_the_tokens_they_score(asked: Path, fresh: Session) -> None:
    trainers, tracking = v0_modules()
    verl_v0.hook_trainer(trainers)
    verl_v0.hook_tracking(tracking)
    first, second = samples(4), samples(4, seed=1)
    trainers.RayPPOTrainer().fit([legacy_step(first, 1), legacy_step(second, 2)])
    for step, batch in ((1, first), (2, second)):
        check_tokens(asked, batch, ALL, step=step)
    with open_run(asked) as run:
        assert run.complete_steps == [1, 2] and run.manifest.recorder.errors == []
        sequences = run.sql("SELECT * FROM sequences WHERE step = 2 ORDER BY sequence")
        assert sequences["uid"].to_list() == ["prompt-0_0", "prompt-0_1", "prompt-1_0", "prompt-1_1"]
        assert sequences["group_id"].to_list() == ["prompt-0", "prompt-0", "prompt-1", "prompt-1"]
        assert sequences["weight_version"].to_list() == [1] * 4
        assert sequences["reward"].to_list() == [s.reward for s in second]
        steps = run.steps()
        assert steps["grad_norm"].to_list() == [2.0, 2.0] and steps["weight_version"].to_list() == [0, 1]
        assert steps["timscope/rejected_tokens"].to_list() == [1, 1]


def test_legacy_entropy_is_left_out_where_rows_may_have_moved(asked: Path, fresh: Session) -> None:
    trainers, tracking = v0_modules()
    verl_v0.hook_trainer(trainers)
    verl_v0.hook_tracking(tracking)
    batch = samples(4)
    scoring, final = legacy_step(batch, 1)
    scoring.later["old_log_probs"] = scoring.later["old_log_probs"].flip(0)
    trainers.RayPPOTrainer().fit([(scoring, final)])
    with open_run(asked) as run:
        assert run.tokens()["entropy"].null_count() == len(run.tokens())
        assert run.tokens()["old_logprob"].null_count() == 0


def test_a_legacy_step_that_crashes_is_not_complete(asked: Path, fresh: Session) -> None:
    trainers, tracking = v0_modules()
    trainers.RayPPOTrainer._update_actor = lambda self, batch: boom()
    verl_v0.hook_trainer(trainers)
    verl_v0.hook_tracking(tracking)
    with pytest.raises(RuntimeError, match="boom"):
        trainers.RayPPOTrainer().fit([legacy_step(samples(3), 1)])
    with open_run(asked) as run:
        assert run.complete_steps == []
    assert list(asked.glob("tokens/step=000001/*.parquet")), "its rows are on disk for whoever looks into the crash"


def test_the_entry_point_names_the_plugin() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    points = tomllib.loads(text)["project"]["entry-points"]["verl.plugins"]
    assert points == {"timscope": "timscope.loggers.adapters.verl:plugin"}
    from timscope.loggers.adapters.verl import plugin

    plugin()  # no run asked for: nothing to see
    assert not any(type(f).__name__ == "_Watch" for f in sys.meta_path)


def test_loading_the_plugin_imports_no_framework(tmp_path: Path) -> None:
    code = (
        "import os, sys, timscope.loggers.adapters.verl as v\n"
        "assert not v._watching\n"
        "os.environ['TIMSCOPE_RUN'] = 'run'\n"
        "v.plugin(), v.plugin()\n"
        "names = {m.split('.')[0] for m in sys.modules}\n"
        "assert not names & {'torch', 'verl', 'ray', 'transformers', 'tensordict'}, names\n"
        "print(*(type(f).__name__ for f in sys.meta_path if not isinstance(f, type)))"
    )
    out = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert out.stderr == "" and out.stdout.split().count("_Watch") == 1
    assert list(tmp_path.iterdir()) == [], "no run is opened by loading"


def test_a_plugin_that_cannot_be_loaded_says_so(asked: Path, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    from timscope.loggers.adapters import verl

    monkeypatch.setitem(sys.modules, "timscope.loggers.adapters.post_import", None)
    monkeypatch.setattr(verl, "_watching", False)
    verl.plugin()
    assert "this job is not recorded" in caplog.text and "post_import" in caplog.text


def test_jagged_rows_keep_their_order() -> None:
    from timscope.loggers.adapters.columns import ragged

    rows = [torch.tensor([1.5, 2.5]), torch.tensor([3.5]), torch.zeros(0)]
    assert [r.tolist() for r in ragged(jagged(rows))] == [[1.5, 2.5], [3.5], []]
