"""What a SkyRL trainer's configuration says about the run, for the manifest."""

from __future__ import annotations

from typing import Any

from timscope.loggers.adapters.config import engine_version, off_if_negative, options, pick, public_name, vllm_mode
from timscope.loggers.trl_facts import environment, package_version

_ENGINE = "generator.inference_engine"
_SAMPLING = "generator.sampling_params"
_ALGORITHM = "trainer.algorithm"

# Losses whose ratio is to the rollout's log-prob; the trainer may then never compute an old one.
_TO_ROLLOUT = ("rollout_is", "dppo")

_ENGINE_OPTIONS = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "num_engines",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "max_num_batched_tokens",
    "max_num_seqs",
    "enforce_eager",
    "engine_init_kwargs",
)
_TRAINER_OPTIONS = (
    "trainer.bf16",
    "trainer.policy_mini_batch_size",
    "trainer.micro_train_batch_size_per_gpu",
    "trainer.micro_forward_batch_size_per_gpu",
    "trainer.max_tokens_per_microbatch",
    "trainer.recompute_old_logprobs_per_minibatch",
    "trainer.gradient_checkpointing",
    "trainer.policy.sequence_parallel_size",
)
_ALGORITHM_OPTIONS = (
    "policy_loss_type",
    "loss_reduction",
    "eps_clip_low",
    "eps_clip_high",
    "use_kl_loss",
    "use_kl_in_reward",
    "kl_loss_coef",
    "use_entropy_loss",
    "off_policy_correction",
    "grpo_norm_by_std",
    "advantage_batch_normalize",
)

# Step columns by SkyRL's names, the first that is there.
STEP_COLUMNS = {
    "loss": ("policy/final_loss", "policy/policy_loss"),
    "reward": ("reward/avg_raw_reward", "loss/avg_final_rewards"),
    "grad_norm": ("policy/grad_norm",),
    "learning_rate": ("policy/policy_lr",),
    "entropy": ("policy/policy_entropy",),
    "time_s": ("timing/step",),
}


def describe(trainer: Any) -> dict[str, Any]:
    """Manifest fields of SkyRL's `RayPPOTrainer`, from its `cfg` and `tokenizer`."""
    config = trainer.cfg
    path, engine = pick(config, "trainer.policy.model.path"), pick(config, f"{_ENGINE}.backend")
    temperature = pick(config, f"{_SAMPLING}.temperature")
    # SkyRL leaves vLLM's mode alone unless engine_init_kwargs names one, and vLLM's own default is raw.
    mode = pick(config, f"{_ENGINE}.engine_init_kwargs.logprobs_mode", "raw_logprobs") if engine == "vllm" else None
    trainer_mode = {"mode": "raw", "temperature": pick(config, f"{_ALGORITHM}.temperature", temperature)}
    return {
        "framework": {"name": "skyrl", "version": package_version("skyrl")},
        "model": {"name": public_name(path), "source": path},
        "tokenizer": {"name": public_name(getattr(trainer.tokenizer, "name_or_path", None)) or public_name(path)},
        "rollout": {
            "name": engine,
            "version": engine_version(engine),
            "dtype": pick(config, f"{_ENGINE}.model_dtype"),
            "options": options(config, (f"{_ENGINE}.{name}" for name in _ENGINE_OPTIONS)),
        },
        "trainer": {
            "name": pick(config, "trainer.strategy"),
            "dtype": "bfloat16" if pick(config, "trainer.bf16") else "float32",
            "options": options(config, _TRAINER_OPTIONS),
        },
        "algorithm": {
            "name": pick(config, f"{_ALGORITHM}.advantage_estimator"),
            "loss_mode": "bypass" if pick(config, f"{_ALGORITHM}.policy_loss_type") in _TO_ROLLOUT else "recompute",
            "num_iterations": pick(config, "trainer.update_epochs_per_batch"),
            "options": options(config, (f"{_ALGORITHM}.{name}" for name in _ALGORITHM_OPTIONS)),
        },
        "sampling": {
            "temperature": temperature,
            "top_p": pick(config, f"{_SAMPLING}.top_p"),
            "top_k": off_if_negative(pick(config, f"{_SAMPLING}.top_k")),
            "min_p": pick(config, f"{_SAMPLING}.min_p"),
            "repetition_penalty": pick(config, f"{_SAMPLING}.repetition_penalty"),
            "max_tokens": pick(config, f"{_SAMPLING}.max_generate_length"),
            "seed": pick(config, "trainer.seed"),
        },
        "logprobs": {
            "rollout_logprob": vllm_mode(mode, temperature),
            "old_logprob": trainer_mode,
            "ref_logprob": trainer_mode,
        },
        "environment": environment(),
    }
