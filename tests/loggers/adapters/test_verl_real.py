"""The verl hooks on the real classes of an installed verl (0.9.1 was used); skipped where there is none.

verl's engines need GPUs, its driver does not: the real `_compute_metrics`, `_compute_old_log_prob` and `_update_actor`
run here on real batches, with the worker groups replaced by functions.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from marked import check_tokens, padded, samples
from verl_shapes import Store, jagged, meta, proto

from timscope.data import open_run
from timscope.loggers.adapters import verl_v0, verl_v1
from timscope.loggers.adapters.session import Session

verl = pytest.importorskip("verl")
tq = pytest.importorskip("transfer_queue")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ALL = {"rollout_logprob", "old_logprob", "ref_logprob", "entropy", "rollout_is_weight"}


@pytest.fixture(scope="module")
def config() -> Any:
    """verl's own default configuration with the few fields that it leaves to the user."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
        made = compose(
            "ppo_trainer",
            overrides=[
                "algorithm.adv_estimator=grpo",
                "actor_rollout_ref.rollout.name=vllm",
                "actor_rollout_ref.rollout.n=2",
                "actor_rollout_ref.rollout.temperature=0.7",
                "actor_rollout_ref.model.path=/models/Qwen3-0.6B",
                "data.train_batch_size=2",
            ],
        )
    OmegaConf.resolve(made)
    return made


@pytest.fixture
def unhooked() -> Any:
    """The real modules; whatever a test hooks is taken off again."""
    from verl.trainer.ppo import ray_trainer
    from verl.trainer.ppo.v1 import trainer_base
    from verl.utils import tracking

    kept = [
        (owner, name, vars(owner)[name])
        for owner, names in (
            (trainer_base.PPOTrainer, ("_compute_metrics", "fit")),
            (ray_trainer.RayPPOTrainer, ("_update_actor", "_compute_old_log_prob", "fit")),
            (tracking.Tracking, ("log",)),
        )
        for name in names
    ]
    yield SimpleNamespace(v1=trainer_base, v0=ray_trainer, tracking=tracking)
    for owner, name, method in kept:
        setattr(owner, name, method)


def check_manifest(path: Path) -> None:
    with open_run(path) as run:
        m = run.manifest
        assert m.recorder.errors == [] and run.problems == []
        assert (m.framework.name, m.framework.version) == ("verl", verl.__version__)
        assert (m.model.name, m.rollout.name, m.trainer.name, m.trainer.dtype) == (
            "Qwen3-0.6B",
            "vllm",
            "fsdp",
            "bfloat16",
        )
        assert (m.sampling.temperature, m.sampling.top_k, m.sampling.max_tokens) == (0.7, 0, 512)
        assert m.logprobs["rollout_logprob"].mode == "processed" and m.algorithm.loss_mode == "recompute"
        assert m.algorithm.options["rollout_correction"]["bypass_mode"] is False
        assert "describe_error" not in m.environment


def v1_trainer(module: Any, config: Any) -> Any:
    from verl.trainer.ppo.v1 import PPOTrainerSync

    trainer = object.__new__(PPOTrainerSync)
    trainer.config, trainer.tokenizer, trainer.use_critic = config, ["a"] * 7, False
    trainer._rollout_moe_lb_metrics_accumulator = None
    trainer._get_n_gpus_for_throughput = lambda: 1
    return trainer


def test_the_real_v1_trainer(asked: Path, fresh: Session, unhooked: Any, config: Any, monkeypatch: Any) -> None:
    batch = samples(4)
    store = Store(batch)
    for row in store.rows.values():
        row["returns"] = row["advantages"]
    monkeypatch.setattr(unhooked.v1, "tq", store)
    verl_v1.hook(unhooked.v1)
    names = meta(batch, [(0, 0), (0, 0), (0, 1), (1, 1)])
    real = tq.KVBatchMeta(partition_id="train", keys=names.keys, tags=names.tags)
    metrics: dict[str, Any] = {"actor/grad_norm": 1.5, "actor/loss": 0.25}
    v1_trainer(unhooked.v1, config)._compute_metrics(real, metrics, {"step": 2.0, "gen": 1.0}, global_steps=2, epoch=0)
    fresh.close()
    check_tokens(asked, batch, ALL, step=2)
    check_manifest(asked)
    with open_run(asked) as run:
        step = run.steps().row(0, named=True)
        assert step["critic/rewards/mean"] == step["reward"] == pytest.approx(np.mean([s.reward for s in batch]))
        assert step["training/off_policy/trajectory_staleness/max"] == 1.0
        assert (step["time_s"], step["grad_norm"], step["weight_version"]) == (2.0, 1.5, 1)


class Workers:
    """A worker group of the legacy trainer: log-probs and entropies of the unpadded batch that it is handed."""

    def __init__(self, batch: list[Any]) -> None:
        self.batch, self.updated = batch, 0

    def _full(self, column: str) -> torch.Tensor:
        """As the engine returns them: one value a token of prompt and response, index i scoring token i + 1."""
        rows = [
            torch.cat([torch.full((len(s.prompt) - 1,), 9.0), s.column(column), torch.tensor([9.0])])
            for s in self.batch
        ]
        return jagged(rows)

    def compute_log_prob(self, batch: Any) -> Any:
        from verl.utils import tensordict_utils as tu

        made = {"log_probs": self._full("old_logprob"), "entropy": self._full("entropy")}
        return tu.get_tensordict(made, non_tensor_dict={"metrics": {"mfu": 0.1}})

    def update_actor(self, batch: Any) -> Any:
        from verl.utils import tensordict_utils as tu

        self.updated += 1
        return tu.get_tensordict({}, non_tensor_dict={"metrics": {"loss": [0.5], "grad_norm": [2.0], "mfu": [0.1]}})


def test_the_real_legacy_trainer(asked: Path, fresh: Session, unhooked: Any, config: Any) -> None:
    batch = samples(4)
    verl_v0.hook_trainer(unhooked.v0)
    verl_v0.hook_tracking(unhooked.tracking)
    shape = proto(batch, [(2, 2)] * 4)
    tensors = {n: value for n, value in shape.batch.items() if n != "old_log_probs"}
    width = tensors["responses"].shape[1]
    final_mask = tensors["response_mask"]
    tensors["response_mask"] = padded([s.sampled for s in batch], width)
    tensors["input_ids"] = torch.cat([tensors["prompts"], tensors["responses"]], dim=1)
    tensors["position_ids"] = (tensors["attention_mask"].cumsum(1) - 1).clamp(min=0)
    data = verl.DataProto.from_dict(tensors, non_tensors=shape.non_tensor_batch)
    trainer = object.__new__(unhooked.v0.RayPPOTrainer)
    trainer.config, trainer.tokenizer, trainer.global_steps = config, None, 3
    trainer.actor_rollout_wg = Workers(batch)
    scored, _mfu = trainer._compute_old_log_prob(data)
    scored.batch.pop("entropys")
    data = data.union(scored)
    data.batch["response_mask"] = final_mask  # what rejection sampling does
    trainer._update_actor(data)
    assert trainer.actor_rollout_wg.updated == 1
    logger = unhooked.tracking.Tracking("project", "experiment", default_backend="console")
    logger.log(data={"actor/grad_norm": 2.0, "training/global_step": 3}, step=3)
    fresh.close()
    check_tokens(asked, batch, ALL, step=3)
    check_manifest(asked)
    with open_run(asked) as run:
        assert run.steps()["grad_norm"].to_list() == [2.0] and run.steps()["timscope/rejected_tokens"].to_list() == [1]


def test_the_real_transfer_queue(asked: Path, fresh: Session, unhooked: Any, config: Any) -> None:
    """Rows go through a real TransferQueue in a local Ray and come back in the batch's order."""
    ray = pytest.importorskip("ray")
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=200_000_000, log_to_driver=False)
    try:
        tq.init()
        batch = samples(4)
        store, names = Store(batch), meta(batch, [(1, 1)] * 4)
        put = [
            {**store.rows[k], "returns": store.rows[k]["advantages"], "uid": k.rsplit("_", 2)[0]} for k in names.keys
        ]
        backwards = slice(None, None, -1)
        tq.kv_batch_put(
            keys=names.keys[backwards],
            partition_id="train",
            fields=list_of_dict_to_tensordict(put[backwards]),
            tags=names.tags[backwards],
        )
        verl_v1.hook(unhooked.v1)
        real = tq.KVBatchMeta(partition_id="train", keys=names.keys, tags=names.tags)
        v1_trainer(unhooked.v1, config)._compute_metrics(real, {}, {"step": 2.0, "gen": 1.0}, global_steps=2, epoch=0)
        fresh.close()
    finally:
        tq.close()
        ray.shutdown()
    check_tokens(asked, batch, ALL, step=2)
    with open_run(asked) as run:
        assert run.sql("SELECT turns FROM sequences ORDER BY sequence")["turns"].to_list() == [2, 3, 4, 5]
        assert run.manifest.recorder.errors == []


def test_importing_verl_loads_the_plugin(tmp_path: Path) -> None:
    """Through the entry point, so timscope has to be installed (an editable install from before it would not do)."""
    from importlib.metadata import entry_points

    if "timscope" not in entry_points(group="verl.plugins").names:
        pytest.skip("this installation of timscope is older than its entry point")
    code = (
        "import sys, verl\n"
        "assert 'verl.trainer.ppo.ray_trainer' not in sys.modules and 'verl.trainer.ppo.v1' not in sys.modules\n"
        "from verl.trainer.ppo.v1 import PPOTrainerSync\n"
        "from verl.trainer.ppo.ray_trainer import RayPPOTrainer\n"
        "from verl.utils.tracking import Tracking\n"
        "print([hasattr(m, '__wrapped__') for m in (PPOTrainerSync._compute_metrics, PPOTrainerSync.fit,"
        " RayPPOTrainer._update_actor, RayPPOTrainer._compute_old_log_prob, Tracking.log)])"
    )
    for asked_for in (True, False):
        env = {**os.environ, **({"TIMSCOPE_RUN": str(tmp_path / "run")} if asked_for else {})}
        out = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert out.stdout.splitlines()[-1] == str([asked_for] * 5), out.stderr[-2000:]
    assert list(tmp_path.iterdir()) == []
