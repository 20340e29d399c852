"""GPU scoring at the shape of Qwen3-8B: bits, then speed beside plain transformers and beside Triton overrides.

    python tests/bench/bench_gpu_scoring.py [--layers 36] [--length 2048] [--batch 8]

Everything in one process, side by side: weights are random, so nothing is downloaded.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from timscope.replay.fast.cache import PAGE, Cache
from timscope.replay.fast.forward import Batch, FastModel
from timscope.replay.fast.matmul import sequential
from timscope.replay.fast.weights import read_weights

HEAD_ROWS = 1024


def random_model(layers: int) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=151_936, hidden_size=4096, intermediate_size=12_288, num_hidden_layers=layers,
        num_attention_heads=32, num_key_value_heads=8, head_dim=128, tie_word_embeddings=False, dtype="bfloat16",
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Qwen3ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return model.eval()


def plain_score(model: Any, ids: Tensor) -> Tensor:
    """transformers: log-probs [B, L - 1] of ids [B, L], head in slices, float32 log-softmax."""
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state.flatten(0, 1)
    targets = ids[:, 1:].flatten()
    parts = [
        torch.log_softmax(model.lm_head(h).float(), -1).gather(1, t[:, None])[:, 0]
        for h, t in zip(hidden.split(HEAD_ROWS), targets.split(HEAD_ROWS), strict=True)
    ]
    return torch.cat(parts).view(ids.shape[0], -1)


def fast_score(fast: FastModel, rows: list[Tensor]) -> list[Tensor]:
    """The fast engine: log-probs of every row [L_i] but its first token."""
    batch = Batch.packed([len(r) - 1 for r in rows], rows[0].device)
    hidden = fast.hidden(torch.cat([r[:-1] for r in rows]), batch)
    scores, _ = fast.logprobs(hidden, torch.cat([r[1:] for r in rows]))
    return list(scores.split([len(r) - 1 for r in rows]))


def decode_score(fast: FastModel, row: Tensor, last: int) -> Tensor:
    """Log-probs of the last tokens of one row, prefill first and then token by token over a paged cache."""
    device, n = row.device, len(row) - 1
    cache = Cache(fast.weights, n // PAGE + 3)
    table = torch.tensor([cache.take(n // PAGE + 1)], dtype=torch.int32, device=device)

    def step(start: int, end: int) -> Tensor:
        at = torch.arange(start, end, device=device)
        batch = Batch(
            at.int(), torch.tensor([0, end - start], dtype=torch.int32, device=device),
            torch.tensor([end], dtype=torch.int32, device=device), end - start,
            table[0, at // PAGE].long() * PAGE + at % PAGE, table,
        )  # fmt: skip
        return fast.hidden(row[start:end], batch, cache)

    step(0, n - last)
    hidden = torch.cat([step(i, i + 1) for i in range(n - last, n)])
    return torch.cat([fast.logprobs(hidden[i : i + 1], row[n - last + 1 + i :][:1])[0] for i in range(last)])


def median_seconds(run: Callable[[], Any], repeats: int = 5) -> float:
    run()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        started = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def bits(fast: FastModel, length: int) -> None:
    generator = torch.Generator("cuda").manual_seed(1)
    lengths = [length, length, 1500, 700, 333, 130, 65, 17, 2]
    rows = [torch.randint(0, 151_936, (n,), device="cuda", generator=generator) for n in lengths]
    wanted = fast_score(fast, rows)
    checks = {
        "alone": [fast_score(fast, [r])[0] for r in rows],
        "reversed": fast_score(fast, rows[::-1])[::-1],
        "pairs": [x for i in range(0, len(rows) - 1, 2) for x in fast_score(fast, rows[i : i + 2])],
    }
    for name, got in checks.items():
        same = [torch.equal(a, b) for a, b in zip(got, wanted, strict=False)]
        print(f"  {name:28} equal {sum(same)} of {len(same)}")
    for i in (0, 2, 5):
        got = decode_score(fast, rows[i], min(64, lengths[i] - 2))
        print(f"  decode of {lengths[i]:5} tokens         equal {torch.equal(got, wanted[i][-len(got) :])}")
    saved = fast.plan.linear
    fast.plan.linear = linear  # type: ignore[method-assign, assignment]
    loose = [fast_score(fast, [r])[0] for r in rows]
    together = fast_score(fast, rows)
    fast.plan.linear = saved  # type: ignore[method-assign]
    same = [torch.equal(a, b) for a, b in zip(loose, together, strict=True)]
    print(f"  negative control, plain cuBLAS: equal {sum(same)} of {len(same)} (must not be all)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    with torch.inference_mode():
        model = random_model(options.layers)
        fast = FastModel(read_weights(model))
        print(torch.cuda.get_device_name(), torch.__version__, f"{options.layers} layers")
        bits(fast, options.length)
        for key, floor in fast.plan.floors.items():
            print(f"  K {key[0]:6} N {key[1]:7}: cuBLAS from {floor} rows, unequal at {fast.plan.refused[key]}")
        ids = torch.randint(0, 151_936, (options.batch, options.length + 1), device="cuda")
        rows = list(ids)
        tokens = options.batch * options.length
        plain = median_seconds(lambda: plain_score(model, ids))
        quick = median_seconds(lambda: fast_score(fast, rows))
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        fast_score(fast, rows)
        peak = (torch.cuda.max_memory_allocated() - before) / 2**30
        a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        rate = 2 * 8192**3 / median_seconds(lambda: a @ b, 20) / 1e12
        flops = tokens * 2 * sum(p.numel() for n, p in model.named_parameters() if "embed" not in n)
        print(f"plain {tokens / plain:,.0f} tokens/s, fast {tokens / quick:,.0f} tokens/s, ratio {plain / quick:.3f}")
        reached = flops / quick / 1e12
        print(f"GEMM rate {rate:.0f} TFLOP/s; fast {reached:.0f} ({reached / rate:.1%}), peak {peak:.2f} GiB")
        fast.plan.linear = sequential  # type: ignore[method-assign, assignment]
        slow = median_seconds(lambda: fast_score(fast, rows), 3)
        print(f"fused kernels over the Triton GEMM: {tokens / slow:,.0f} tokens/s")
        fast.plan = type(fast.plan)(fast.plan.floors)
        profile(fast, rows)


def profile(fast: FastModel, rows: list[Tensor]) -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    with record(activities=[ProfilerActivity.CUDA]) as seen:
        fast_score(fast, rows)
        torch.cuda.synchronize()
    print(seen.key_averages().table(sort_by="cuda_time_total", row_limit=14, max_name_column_width=60))


if __name__ == "__main__":
    main()
