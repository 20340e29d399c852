"""What OpenRLHF's arguments say about the run, for the manifest."""

from __future__ import annotations

from typing import Any

from timscope.loggers.adapters.config import engine_version, options, pick, public_name, vllm_mode
from timscope.loggers.trl_facts import environment, package_version

_ENGINE_OPTIONS = ("num_engines", "tensor_parallel_size", "enforce_eager", "enable_prefix_caching")
_TRAINER_OPTIONS = (
    "ds.attn_implementation",
    "ds.tensor_parallel_size",
    "ds.ring_attn_size",
    "ds.packing_samples",
    "ds.use_liger_kernel",
    "ds.zero_stage",
    "train.dynamic_batch_enable",
    "train.max_tokens_per_gpu",
    "train.batch_size",
    "train.full_determinism_enable",
    "train.async_enable",
    "train.partial_rollout_enable",
    "rollout.micro_batch_size",
    "rollout.n_samples_per_prompt",
)
_ALGORITHM_OPTIONS = (
    "actor.policy_loss_type",
    "actor.loss_agg_mode",
    "actor.eps_clip",
    "actor.eps_clip_low_high",
    "actor.dual_clip",
    "actor.entropy_coef",
    "algo.kl.init_coef",
    "algo.kl.use_loss",
    "algo.kl.estimator",
    "algo.advantage.is_correction_level",
    "algo.advantage.is_correction_mode",
    "algo.advantage.is_correction_gating",
    "algo.advantage.is_correction_threshold",
    "algo.advantage.gamma",
    "algo.advantage.lambd",
)

# Step columns by OpenRLHF's names, the first that is there.
STEP_COLUMNS = {
    "loss": ("policy_loss",),
    "reward": ("rollout/reward_mean", "reward"),
    "grad_norm": ("actor_grad_norm",),
    "learning_rate": ("actor_lr",),
    "entropy": ("entropy_loss",),
}


def sync_version(args: Any, number: int) -> int | None:
    """The weights that generated the rows of step `number`: those of the step before, unless generation runs beside
    training, where OpenRLHF keeps no version."""
    return None if pick(args, "train.async_enable", False) else number - 1


def describe(maker: Any) -> dict[str, Any]:
    """Manifest fields of OpenRLHF's `RemoteExperienceMaker`, from its `args` and `tokenizer`."""
    args = maker.args
    path, temperature = pick(args, "actor.model_name_or_path"), pick(args, "rollout.temperature")
    corrected = pick(args, "algo.advantage.is_correction_level", "off") != "off"
    trainer_mode = {"mode": "raw", "temperature": temperature}
    return {
        "framework": {"name": "openrlhf", "version": package_version("openrlhf")},
        "model": {"name": public_name(path), "source": path},
        "tokenizer": {"name": public_name(getattr(maker.tokenizer, "name_or_path", None)) or public_name(path)},
        "rollout": {
            "name": "vllm",
            "version": engine_version("vllm"),
            "options": options(args, (f"vllm.{name}" for name in _ENGINE_OPTIONS)),
        },
        "trainer": {
            "name": "deepspeed",
            "version": package_version("deepspeed"),
            "dtype": {"bf16": "bfloat16", "fp16": "float16"}.get(str(pick(args, "ds.param_dtype"))),
            "attention": pick(args, "ds.attn_implementation"),
            "options": options(args, _TRAINER_OPTIONS),
        },
        "algorithm": {
            "name": pick(args, "algo.advantage.estimator"),
            "loss_mode": "recompute",
            "num_iterations": pick(args, "train.max_epochs"),
            "options": options(args, _ALGORITHM_OPTIONS),
        },
        "sampling": {
            "temperature": temperature,
            "top_p": pick(args, "rollout.top_p"),
            "max_tokens": pick(args, "rollout.max_new_tokens"),
            "seed": pick(args, "train.seed"),
        },
        "logprobs": {
            # Only with the correction does OpenRLHF ask vLLM for log-probs, and then for processed ones.
            "rollout_logprob": vllm_mode("processed_logprobs" if corrected else None, temperature),
            "old_logprob": trainer_mode,
            "ref_logprob": trainer_mode,
        },
        "environment": environment(),
    }
