"""The exact engine as TRL's sampler: a `rollout_func` for GRPOTrainer whose log-probs equal the engine's scoring.

    from timscope.replay import exact_rollout

    trainer = GRPOTrainer(model=..., reward_funcs=..., args=GRPOConfig(...), rollout_func=exact_rollout())

TRL calls it with this process's prompts (each as often as it wants responses) and the trainer, and wants prompt_ids,
completion_ids and logprobs, one list of each a prompt. Templates are the function's own business. Written for TRL 1.16,
where the argument is experimental. One GPU a process and unsharded weights: the engine reads them from the trainer's
model whenever the step has changed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from timscope.data import BadInput
from timscope.replay.engines import fast_refusal


def exact_generator(model: Any, *, slots: int = 64, tokens: int = 2048) -> Any:
    """A Generator over a transformers model's weights as they stand. BadInput where the fast engine cannot serve it."""
    if refusal := fast_refusal(model.config, model.dtype, model.device):
        raise BadInput(f"the exact generator cannot serve this model: {refusal}")
    from timscope.replay.fast.generate import Generator
    from timscope.replay.fast_engine import fast_model

    return Generator(fast_model(model), slots=slots, tokens=tokens)


def _prompt_ids(tokenizer: Any, prompt: Any, options: dict[str, Any]) -> list[int]:
    if isinstance(prompt, str):
        return list(tokenizer(prompt)["input_ids"])
    return list(tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False, **options))


def exact_rollout(slots: int = 64, seed: int = 0) -> Callable[[list[Any], Any], dict[str, Any]]:
    """A `rollout_func(prompts, trainer)`; sampling parameters are the trainer's, `seed` starts the stream of noise.

    Besides what TRL requires it returns `weight_version`, the trainer's step, which TRL hands to the reward functions.
    """
    held: dict[str, Any] = {}
    seeds = itertools.count(seed)

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        from timscope.replay.fast.sampling import Sampling

        if (trainer.min_p or 0) > 0 or trainer.repetition_penalty not in (None, 1.0):
            raise BadInput("the exact generator knows no min_p and no repetition penalty: leave them off")
        tokenizer = getattr(trainer, "_tokenizer", None) or trainer.processing_class
        ids = [_prompt_ids(tokenizer, p, getattr(trainer, "chat_template_kwargs", None) or {}) for p in prompts]
        limit, step = trainer.max_completion_length, trainer.state.global_step
        tokens = max(map(len, ids)) + limit
        if held.get("step") != step or held["generator"].tokens < tokens:
            held.clear()  # the old weights and cache go before the new ones come
            model = trainer.accelerator.unwrap_model(trainer.model)
            held.update(step=step, generator=exact_generator(model, slots=slots, tokens=max(1024, tokens)))
        ends = model_ends(trainer, tokenizer)
        asked = [
            Sampling(trainer.temperature, trainer.top_p or 1.0, max(trainer.top_k or 0, 0), limit, ends, next(seeds))
            for _ in ids
        ]
        drawn = held["generator"].generate(ids, asked)
        return {
            "prompt_ids": ids,
            "completion_ids": [c.token_ids for c in drawn],
            "logprobs": [c.logprobs for c in drawn],
            "weight_version": [step] * len(ids),
        }

    return rollout


def model_ends(trainer: Any, tokenizer: Any) -> tuple[int, ...]:
    """Token ids that end a response: the tokenizer's, and those of the model's generation config."""
    config = getattr(trainer.accelerator.unwrap_model(trainer.model), "generation_config", None)
    said = getattr(config, "eos_token_id", None)
    ends = [] if said is None else said if isinstance(said, list) else [said]
    return tuple(sorted({*ends, tokenizer.eos_token_id} - {None}))
