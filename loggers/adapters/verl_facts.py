"""What a verl trainer's configuration says about the run, for the manifest. One tree for both trainers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from timscope.loggers.adapters.config import (
    engine_version,
    off_if_negative,
    options,
    pick,
    public_name,
    standard,
    vllm_mode,
)
from timscope.loggers.trl_facts import environment, package_version

_ROLLOUT = "actor_rollout_ref.rollout"
_ACTOR = "actor_rollout_ref.actor"

_ROLLOUT_OPTIONS = (
    "mode",
    "n",
    "calculate_log_probs",
    "logprobs_mode",
    "full_determinism",
    "enforce_eager",
    "tensor_model_parallel_size",
    "data_parallel_size",
    "expert_parallel_size",
    "pipeline_model_parallel_size",
    "max_num_batched_tokens",
    "max_num_seqs",
    "max_model_len",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "quantization",
    "engine_kwargs",
    "prompt_length",
)
_TRAINER_OPTIONS = (
    f"{_ACTOR}.ppo_mini_batch_size",
    f"{_ACTOR}.ppo_micro_batch_size_per_gpu",
    f"{_ACTOR}.use_dynamic_bsz",
    f"{_ACTOR}.ppo_max_token_len_per_gpu",
    f"{_ACTOR}.use_torch_compile",
    f"{_ACTOR}.use_fused_kernels",
    f"{_ACTOR}.ulysses_sequence_parallel_size",
    f"{_ACTOR}.fsdp_config.model_dtype",
    f"{_ACTOR}.fsdp_config.full_determinism",
    f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu",
    f"{_ROLLOUT}.log_prob_use_dynamic_bsz",
    f"{_ROLLOUT}.log_prob_max_token_len_per_gpu",
    "actor_rollout_ref.model.use_remove_padding",
    "actor_rollout_ref.model.lora_rank",
    "trainer.use_v1",
    "trainer.nnodes",
    "trainer.n_gpus_per_node",
)
_ALGORITHM_OPTIONS = (
    f"{_ACTOR}.policy_loss",
    f"{_ACTOR}.clip_ratio_low",
    f"{_ACTOR}.clip_ratio_high",
    f"{_ACTOR}.clip_ratio_c",
    f"{_ACTOR}.loss_agg_mode",
    f"{_ACTOR}.entropy_coeff",
    f"{_ACTOR}.use_kl_loss",
    f"{_ACTOR}.kl_loss_coef",
    f"{_ACTOR}.kl_loss_type",
    f"{_ACTOR}.optim.lr",
    f"{_ACTOR}.grad_clip",
    "algorithm.rollout_correction",
    "algorithm.use_kl_in_reward",
    "algorithm.kl_penalty",
    "algorithm.gamma",
    "algorithm.lam",
    "algorithm.norm_adv_by_std_in_grpo",
    "data.train_batch_size",
    "trainer.v1.trainer_mode",
)

# Step columns by verl's names, the first that is there. verl reduces them over the mini-batches of its step.
STEP_COLUMNS = {
    "loss": ("actor/loss",),
    "reward": ("critic/rewards/mean", "critic/score/mean"),
    "grad_norm": ("actor/grad_norm",),
    "learning_rate": ("actor/lr",),
    "entropy": ("actor/entropy",),
    "time_s": ("timing_s/step", "perf/time_per_step"),
}


def is_bypass(config: Any) -> bool:
    """Whether `old_log_probs` is the rollout's own log-prob instead of one that the trainer computed."""
    return bool(pick(config, "algorithm.rollout_correction.bypass_mode", False))


def step_columns(metrics: Mapping[str, float]) -> dict[str, float]:
    """verl's metrics under the names of the schema's step columns."""
    return standard(metrics, STEP_COLUMNS)


def describe(trainer: Any) -> dict[str, Any]:
    """Manifest fields of a `PPOTrainer` or `RayPPOTrainer`, from its `config` and `tokenizer`."""
    config = trainer.config
    path, engine = pick(config, "actor_rollout_ref.model.path"), pick(config, f"{_ROLLOUT}.name")
    temperature = pick(config, f"{_ROLLOUT}.temperature")
    # The trainer divides its logits by the temperature and normalises over the whole vocabulary: no truncation.
    trainer_mode = {"mode": "raw", "temperature": temperature}
    return {
        "framework": {"name": "verl", "version": package_version("verl")},
        "model": {
            "name": public_name(path),
            "source": path,
            "dtype": pick(config, f"{_ACTOR}.fsdp_config.model_dtype"),
        },
        "tokenizer": {
            "name": public_name(pick(config, "actor_rollout_ref.model.tokenizer_path", path)),
            "vocab_size": len(trainer.tokenizer) if getattr(trainer, "tokenizer", None) is not None else None,
        },
        "rollout": {
            "name": engine,
            "version": engine_version(engine),
            "dtype": pick(config, f"{_ROLLOUT}.dtype"),
            "options": options(config, (f"{_ROLLOUT}.{name}" for name in _ROLLOUT_OPTIONS)),
        },
        "trainer": {
            "name": pick(config, f"{_ACTOR}.strategy"),
            # What the forward runs in: FSDP keeps model_dtype and computes in this.
            "dtype": pick(config, f"{_ACTOR}.fsdp_config.dtype", pick(config, f"{_ACTOR}.megatron.dtype")),
            "device": pick(config, "trainer.device"),
            "options": options(config, _TRAINER_OPTIONS),
        },
        "algorithm": {
            "name": pick(config, "algorithm.adv_estimator"),
            "loss_mode": "bypass" if is_bypass(config) else "recompute",
            "num_iterations": pick(config, f"{_ACTOR}.ppo_epochs"),
            "options": options(config, _ALGORITHM_OPTIONS),
        },
        "sampling": {
            "temperature": temperature,
            "top_p": pick(config, f"{_ROLLOUT}.top_p"),
            "top_k": off_if_negative(pick(config, f"{_ROLLOUT}.top_k")),
            "repetition_penalty": pick(config, f"{_ROLLOUT}.repetition_penalty"),
            "max_tokens": pick(config, f"{_ROLLOUT}.response_length"),
            "seed": pick(config, f"{_ROLLOUT}.seed"),
        },
        "logprobs": {
            # vLLM is asked for a mode; what other engines return is not in the configuration.
            "rollout_logprob": vllm_mode(
                pick(config, f"{_ROLLOUT}.logprobs_mode") if engine == "vllm" else None, temperature
            ),
            **dict.fromkeys(("old_logprob", "ref_logprob", "entropy"), trainer_mode),
        },
        "environment": environment(),
    }
