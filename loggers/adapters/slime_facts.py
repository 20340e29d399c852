"""What slime's arguments say about the run, for the manifest."""

from __future__ import annotations

from typing import Any

from timscope.loggers.adapters.config import engine_version, off_if_negative, options, pick, public_name
from timscope.loggers.trl_facts import environment, package_version

_ENGINE_OPTIONS = (
    "rollout_num_gpus_per_engine",
    "sglang_mem_fraction_static",
    "sglang_enable_deterministic_inference",
    "sglang_attention_backend",
    "sglang_kv_cache_dtype",
    "sglang_quantization",
)
_TRAINER_OPTIONS = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "sequence_parallel",
    "use_dynamic_batch_size",
    "max_tokens_per_gpu",
    "micro_batch_size",
    "global_batch_size",
    "attention_backend",
    "deterministic_mode",
    "qkv_format",
)
_ALGORITHM_OPTIONS = (
    "loss_type",
    "eps_clip",
    "eps_clip_high",
    "eps_clip_c",
    "use_kl_loss",
    "kl_loss_coef",
    "kl_loss_type",
    "kl_coef",
    "entropy_coef",
    "use_tis",
    "tis_clip",
    "tis_clip_low",
    "use_rollout_logprobs",
    "get_mismatch_metrics",
    "rewards_normalization",
    "grpo_std_normalization",
    "normalize_advantages",
    "n_samples_per_prompt",
    "rollout_batch_size",
    "lr",
)


def describe(args: Any) -> dict[str, Any]:
    """Manifest fields from slime's argument namespace."""
    path, temperature = pick(args, "hf_checkpoint"), pick(args, "rollout_temperature")
    # With top-p slime scores over the tokens that the engine kept, otherwise over the whole vocabulary.
    kept = pick(args, "rollout_top_p", 1.0) != 1.0
    trainer_mode = {"mode": "processed" if kept else "raw", "temperature": temperature}
    return {
        "framework": {"name": "slime", "version": package_version("slime")},
        "model": {"name": public_name(path), "source": path},
        "tokenizer": {"name": public_name(path), "vocab_size": pick(args, "vocab_size")},
        "rollout": {
            "name": "sglang",
            "version": engine_version("sglang"),
            "dtype": pick(args, "sglang_dtype"),
            "options": options(args, _ENGINE_OPTIONS),
        },
        "trainer": {
            "name": "megatron",
            "version": package_version("megatron-core"),
            "dtype": "float16" if pick(args, "fp16", False) else "bfloat16" if pick(args, "bf16", False) else None,
            "options": options(args, _TRAINER_OPTIONS),
        },
        "algorithm": {
            "name": pick(args, "advantage_estimator"),
            "loss_mode": "bypass" if pick(args, "use_rollout_logprobs", False) else "recompute",
            "num_iterations": 1,
            "options": options(args, _ALGORITHM_OPTIONS),
        },
        "sampling": {
            "temperature": temperature,
            "top_p": pick(args, "rollout_top_p"),
            "top_k": off_if_negative(pick(args, "rollout_top_k")),
            "max_tokens": pick(args, "rollout_max_response_len"),
            "seed": pick(args, "rollout_seed"),
        },
        "logprobs": {
            # SGLang's mode is not in slime's arguments.
            "rollout_logprob": {"mode": None, "temperature": temperature},
            "old_logprob": trainer_mode,
            "ref_logprob": trainer_mode,
        },
        "environment": environment(),
    }
