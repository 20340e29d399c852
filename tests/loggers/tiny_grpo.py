"""A GRPO or RLOO job small enough for a test: a random two-layer Qwen2, a tokenizer of single characters, CPU only.

`FakeVllm` stands where TRL keeps its vLLM engine and samples from a bfloat16 copy of the policy, so that TRL's real
importance-sampling path runs without vLLM.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

CHARACTERS = list("0123456789+-= abcdefghijklmnopqrstuvwxyz")
SPECIAL = ["<pad>", "<eos>"]


def tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *CHARACTERS])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="a"))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>")


def model(seed: int = 0) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(SPECIAL) + len(CHARACTERS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.3,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    return Qwen2ForCausalLM(config)


def digits(completions: list[str], **_: Any) -> list[float]:
    return [sum(c.isdigit() for c in text) / 8 for text in completions]


def picky(completions: list[str], **_: Any) -> list[float | None]:
    """Says nothing about completions that start with a vowel."""
    return [None if text.strip().startswith(tuple("aeiou")) else float(len(text) % 3) for text in completions]


class FakeVllm:
    """TRL's engine seam: `sync_weights` and `generate` over a bfloat16 copy, now and then with no log-prob (None)."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.engine: Any = None
        self.random = torch.Generator().manual_seed(7)
        self.syncs = 0

    def sync_weights(self) -> None:
        self.syncs += 1
        policy = self.trainer.accelerator.unwrap_model(self.trainer.model)
        # Not a deepcopy: TRL put a forward on the instance that would go on calling the float32 policy.
        self.engine = Qwen2ForCausalLM(policy.config)
        self.engine.load_state_dict(policy.state_dict())
        self.engine.to(torch.bfloat16).eval()

    @torch.no_grad()
    def generate(self, prompts: list[list[int]], images: Any, num_generations: int, profiler: Any = None) -> Any:
        completions, logprobs = [], []
        for prompt in prompts:
            ids, said = list(prompt), []
            while len(said) < self.trainer.max_completion_length:
                logits = self.engine.forward(torch.tensor([ids])).logits[0, -1].float() / self.trainer.temperature
                logp = logits.log_softmax(-1)
                token = int(torch.multinomial(logp.exp(), 1, generator=self.random))
                said.append([None if len(said) == 2 and token % 5 == 0 else float(logp[token])])
                ids.append(token)
                if token == 1:
                    break
            completions.append(ids[len(prompt) :])
            logprobs.append(said)
        return prompts, completions, logprobs, None


def trainer(
    out: Path,
    *,
    vllm: bool,
    policy: Any = None,
    evaluate: bool = False,
    rewards: Any = (digits, picky),
    rloo: bool = False,
    extra: dict[str, Any] | None = None,
    prompts: Any = ("1+1=", "23+4=", "abc", "q = 7", "0-5", "go", "8", "x+y"),
    **options: Any,
) -> Any:
    """A GRPOTrainer or RLOOTrainer over a few short prompts. `options` go to its config, `extra` to its constructor."""
    settings: dict[str, Any] = dict(
        output_dir=str(out),
        use_cpu=True,
        bf16=False,
        max_steps=4,
        logging_steps=1,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=8,
        learning_rate=1e-2,
        report_to=[],
        save_strategy="no",
        seed=3,
        disable_tqdm=True,
        temperature=0.9,
        dataloader_pin_memory=False,
    )
    settings.update(options)
    made = (RLOOTrainer if rloo else GRPOTrainer)(
        model=policy or model(),
        reward_funcs=list(rewards),
        args=(RLOOConfig if rloo else GRPOConfig)(**settings),
        processing_class=tokenizer(),
        train_dataset=Dataset.from_dict({"prompt": list(prompts)}),
        eval_dataset=Dataset.from_dict({"prompt": list(prompts[:2])}) if evaluate else None,
        **(extra or {}),
    )
    if vllm:
        made.use_vllm, made._last_loaded_step, made.vllm_generation = True, -1, FakeVllm(made)
    return made
