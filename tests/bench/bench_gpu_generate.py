"""Generation and scoring of the small model on a GPU beside vLLM: bits first, then tokens a second.

python tests/bench/bench_gpu_generate.py MODEL_DIR [--prompts 256] [--tokens 320] [--skip-vllm]
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import torch

from timscope.replay.fast.forward import Batch, FastModel
from timscope.replay.fast.generate import Generator
from timscope.replay.fast.sampling import Completion, Sampling
from timscope.replay.fast.weights import read_weights


def rescored(
    fast: FastModel, prompts: list[list[int]], done: list[Completion], temperature: float
) -> list[torch.Tensor]:
    """Log-probs of the drawn tokens from one packed prefill a few sequences long."""
    out = []
    for i in range(0, len(prompts), 32):
        rows = [p + c.token_ids for p, c in zip(prompts[i : i + 32], done[i : i + 32], strict=True)]
        hidden = fast.hidden(
            torch.tensor([t for r in rows for t in r[:-1]], device="cuda"),
            Batch.packed([len(r) - 1 for r in rows], torch.device("cuda")),
        )
        scores, _ = fast.logprobs(hidden, torch.tensor([t for r in rows for t in r[1:]], device="cuda"), temperature)
        parts = scores.split([len(r) - 1 for r in rows])
        out += [s[len(p) - 1 :].cpu() for s, p in zip(parts, prompts[i : i + 32], strict=True)]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=320)
    parser.add_argument("--skip-vllm", action="store_true")
    options = parser.parse_args()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    chats = [
        [{"role": "user", "content": f"Tell me {i} things about the number {i * 7}."}] for i in range(options.prompts)
    ]
    prompts = [tokenizer.apply_chat_template(c, add_generation_prompt=True, return_dict=False) for c in chats]
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16).cuda().eval()
    with torch.inference_mode():
        fast = FastModel(read_weights(model, 4096))
        generator = Generator(fast, slots=256, tokens=1024)
        asked = [Sampling(max_tokens=options.tokens, seed=i, stop=(2,)) for i in range(len(prompts))]
        generator.generate(prompts[:8], asked[:8])
        generator.generate(prompts, asked)
        torch.cuda.synchronize()
        started = time.perf_counter()
        done = generator.generate(prompts, asked)
        seconds = time.perf_counter() - started
        count = sum(len(c.token_ids) for c in done)
        print(f"timscope generates {count / seconds:,.0f} tokens/s ({count:,} tokens, {seconds:.2f} s)")
        again = rescored(fast, prompts, done, 1.0)
        equal = sum(int((torch.tensor(c.logprobs) == s).sum()) for c, s in zip(done, again, strict=True))
        print(f"decode equals scoring on {equal:,} of {count:,} tokens")
        for size in (1, 3, 64):
            few = Generator(fast, slots=size, tokens=1024).generate(prompts[:size], asked[:size])
            same = sum(a.token_ids == b.token_ids and a.logprobs == b.logprobs for a, b in zip(few, done, strict=False))
            print(f"the first {size} in a batch of {size}: {same} responses equal in ids and bits")
        cut = [Sampling(max_tokens=64, seed=i, top_p=0.9, top_k=50, temperature=0.7) for i in range(len(prompts))]
        started = time.perf_counter()
        short = generator.generate(prompts, cut)
        again = rescored(fast, prompts, short, 0.7)
        equal = sum(int((torch.tensor(c.logprobs) == s).sum()) for c, s in zip(short, again, strict=True))
        kept = torch.tensor([m for c in short for m in c.kept_mass])
        total = sum(len(c.token_ids) for c in short)
        print(
            f"top-p, top-k, T=0.7: equal {equal:,} of {total:,}; kept mass {kept.mean():.4f}, {kept.min():.4f} at least"
        )
        rows = [p + c.token_ids for p, c in zip(prompts, done, strict=True)]
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        torch.cuda.synchronize()
        started = time.perf_counter()
        rescored(fast, prompts, done, 1.0)
        torch.cuda.synchronize()
        scoring = time.perf_counter() - started
        total = sum(map(len, rows))
        peak = (torch.cuda.max_memory_allocated() - before) / 2**30
        print(f"timscope scores {total / scoring:,.0f} tokens/s, peak {peak:.2f} GiB above the weights")
        for key, floor in fast.plan.floors.items():
            print(f"  K {key[0]} N {key[1]}: cuBLAS from {floor} rows, unequal at {fast.plan.refused[key]}")
        profile(generator, prompts, asked)
    del generator
    torch.cuda.empty_cache()
    if not options.skip_vllm:
        vllm(options.model, prompts, options.tokens, rows)


def profile(generator: Generator, prompts: list[list[int]], asked: list[Sampling]) -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    short = [Sampling(max_tokens=24, seed=s.seed) for s in asked]
    generator.generate(prompts, short)
    with record(activities=[ProfilerActivity.CUDA]) as seen:
        generator.generate(prompts, short)
        torch.cuda.synchronize()
    print(seen.key_averages().table(sort_by="cuda_time_total", row_limit=12, max_name_column_width=50))


def vllm(path: str, prompts: list[list[int]], tokens: int, rows: list[list[int]]) -> None:
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    from vllm import LLM, SamplingParams

    engine: Any = LLM(
        path, dtype="bfloat16", gpu_memory_utilization=0.3, max_model_len=1024, logprobs_mode="raw_logprobs"
    )
    asked = [
        SamplingParams(temperature=1.0, max_tokens=tokens, seed=None, logprobs=0, stop_token_ids=[2]) for _ in prompts
    ]
    for _ in range(2):
        started = time.perf_counter()
        out = engine.generate([{"prompt_token_ids": p} for p in prompts], asked, use_tqdm=False)
        seconds = time.perf_counter() - started
    count = sum(len(o.outputs[0].token_ids) for o in out)
    print(f"vLLM generates {count / seconds:,.0f} tokens/s ({count:,} tokens)")
    scoring = SamplingParams(max_tokens=1, prompt_logprobs=0)
    for _ in range(2):
        started = time.perf_counter()
        engine.generate([{"prompt_token_ids": r} for r in rows], scoring, use_tqdm=False)
        seconds = time.perf_counter() - started
    print(f"vLLM prompt_logprobs scores {sum(map(len, rows)) / seconds:,.0f} tokens/s")


if __name__ == "__main__":
    main()
