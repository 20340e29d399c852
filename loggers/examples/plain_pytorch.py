"""GRPO in plain PyTorch with a Recorder around it: the smallest loop that records everything, in seconds on a CPU.

    pip install torch transformers
    python loggers/examples/plain_pytorch.py --out runs/plain
    timscope check runs/plain && timscope diagnose runs/plain

The model is a random two-layer Qwen2. The rollout engine is a bfloat16 copy of it, decoding without a KV cache; the
trainer is float32. That is the mismatch to be seen. The reward is the share of even token ids.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from timscope.loggers import Recorder
from timscope.loggers.gradients import gradient_groups

VOCABULARY, PROMPTS, GROUP, PROMPT_LENGTH, RESPONSE_LENGTH = 64, 4, 8, 5, 16


def make_policy(dtype: Any, seed: int = 0) -> Any:
    """A random causal LM of 40,000 parameters."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = Qwen2Config(vocab_size=VOCABULARY, num_key_value_heads=1, initializer_range=0.2, **shape)
    return Qwen2ForCausalLM(config).to(dtype)


def rollout(engine: Any, prompts: Any) -> tuple[Any, Any]:
    """Sample a response a prompt: ids (B, C) and the log-probs (B, C) of the distribution that each was drawn from."""
    import torch

    ids, logprobs = prompts, []
    with torch.no_grad():
        for _ in range(RESPONSE_LENGTH):
            logp = engine(ids).logits[:, -1].float().log_softmax(-1)
            token = torch.multinomial(logp.exp(), 1)
            logprobs.append(logp.gather(1, token))
            ids = torch.cat([ids, token], dim=1)
    return ids[:, PROMPT_LENGTH:], torch.cat(logprobs, dim=1)


def score(policy: Any, prompts: Any, responses: Any) -> tuple[Any, Any]:
    """Log-probs and entropies (B, C) of the responses: the logits before a token are the ones that score it."""
    import torch

    logits = policy(torch.cat([prompts, responses], dim=1)).logits[:, PROMPT_LENGTH - 1 : -1].float()
    logp = logits.log_softmax(-1)
    return logp.gather(2, responses[:, :, None])[:, :, 0], -(logp.exp() * logp).sum(-1)


def train(out: Path | None, steps: int = 8, learning_rate: float = 5e-3) -> list[float]:
    """Train for `steps` optimizer steps and record them in `out` (None: nothing). Returns the mean reward of each."""
    import torch

    policy, engine = make_policy(torch.float32), make_policy(torch.bfloat16)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=learning_rate)
    recorder = Recorder(
        out,
        framework="plain-pytorch",
        model={"name": "random-qwen2", "dtype": "float32", "config": policy.config.to_dict(), "vocab_size": VOCABULARY},
        rollout={"name": "transformers", "dtype": "bfloat16"},
        trainer={"name": "transformers", "dtype": "float32"},
        algorithm={"name": "grpo", "loss_mode": "recompute", "num_iterations": 1},
        sampling={"temperature": 1.0, "top_p": 1.0, "max_tokens": RESPONSE_LENGTH},
        logprobs={f"{name}_logprob": {"mode": "raw", "temperature": 1.0} for name in ("rollout", "old", "loss")},
        snapshots=steps,  # every version of the weights can be restored: this model is small
    )
    recorder.weights(0, policy)
    rewards = []
    for number in range(1, steps + 1):
        started = time.perf_counter()
        engine.load_state_dict(policy.state_dict())  # the rollout engine gets the weights of the step before
        prompts = torch.randint(VOCABULARY, (PROMPTS, PROMPT_LENGTH)).repeat_interleave(GROUP, 0)
        responses, rollout_logprob = rollout(engine, prompts)
        reward = (responses % 2 == 0).float().mean(1)
        grouped = reward.view(PROMPTS, GROUP)
        advantage = ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)).view(-1)
        with torch.no_grad():
            old_logprob, entropy = score(policy, prompts, responses)

        loss_logprob, _ = score(policy, prompts, responses)
        ratio = (loss_logprob - old_logprob).exp()
        loss = -torch.min(ratio * advantage[:, None], ratio.clamp(0.8, 1.2) * advantage[:, None]).mean()
        optimizer.zero_grad()
        loss.backward()
        gradients: Any = gradient_groups(policy.named_parameters()) if out else {}
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()

        with recorder.step(number) as step:
            names = [f"{number:04d}-{row:02d}" for row in range(len(prompts))]
            groups = [f"{number:04d}-{row // GROUP}" for row in range(len(prompts))]
            said = {"uid": names, "group_id": groups, "weight_version": number - 1}
            step.rollout(prompt_ids=prompts, completion_ids=responses, rollout_logprob=rollout_logprob, **said)
            step.trainer(old_logprob=old_logprob, loss_logprob=loss_logprob, entropy=entropy)
            step.scores(reward=reward, advantage=advantage)
            step.gradients(gradients)
            step.metrics(loss=loss, reward=reward.mean(), grad_norm=norm, learning_rate=learning_rate)
            step.metrics(entropy=entropy.mean(), time_s=time.perf_counter() - started, weight_version=number - 1)
        recorder.weights(number, policy)
        rewards.append(float(reward.mean()))
    recorder.close()
    return rewards


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="run directory to write")
    parser.add_argument("--steps", type=int, default=8, help="optimizer steps")
    options = parser.parse_args()
    print("mean reward:", " ".join(f"{reward:.3f}" for reward in train(options.out, options.steps)))
