"""What measuring gradients costs, with and without a sketch, on random gradients of SmolLM2-135M's shapes.

Run by hand: python tests/bench/bench_gradients.py [--device cuda] [--repeats N]. On CUDA it fails where anything
synchronises or two measurements of one gradient differ by a bit, and prints the training thread's time, the device's,
the kernels and the scratch memory. On a CPU a plain norm of every gradient stands beside it.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch

from timscope.loggers.gradients import gradient_groups
from timscope.loggers.sketch import SketchPlan


def carrying(gradients: dict[str, torch.Tensor]) -> list[tuple[str, Any]]:
    """Parameters with these gradients."""
    pairs = []
    for name, gradient in gradients.items():
        parameter = torch.nn.Parameter(torch.empty_like(gradient))
        parameter.grad = gradient
        pairs.append((name, parameter))
    return pairs


def shapes() -> dict[str, torch.Size]:
    """Names and shapes of SmolLM2-135M's parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "vocab_size": 49152}
    with torch.device("meta"):
        model = LlamaForCausalLM(
            LlamaConfig(**config, num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True)
        )
    return {name: p.shape for name, p in model.named_parameters()}


def timed(device: str, repeats: int) -> None:
    """Time of statistics alone and with a sketch, fp32 and bf16."""
    generator = torch.Generator(device).manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        made = {n: torch.randn(s, generator=generator, device=device).to(dtype) for n, s in shapes().items()}
        named = carrying(made)
        for plan in (None, SketchPlan()):
            first = time.perf_counter()
            result = gradient_groups(named, 1.0, plan).result()
            first = time.perf_counter() - first
            again = gradient_groups(named, 1.0, plan).result()
            for group, row in result.items():
                for key, value in row.items():
                    assert np.array_equal(value, again[group][key]), f"{group}.{key} differs between two measurements"
            what = (
                f"{device} {dtype}, {'statistics' if plan is None else 'with sketch'}: first call {first:.2f} s, then"
            )
            (_cuda_times if device == "cuda" else _cpu_times)(what, named, plan, repeats)


def _cpu_times(what: str, named: list[tuple[str, Any]], plan: SketchPlan | None, repeats: int) -> None:
    taken, plain = [], []
    gradients = [p.grad for _, p in named]
    for _ in range(repeats // 4):
        start = time.process_time()
        gradient_groups(named, 1.0, plan).result()
        middle = time.process_time()
        torch._foreach_norm(gradients, 2)
        taken.append(middle - start)
        plain.append(time.process_time() - middle)
    print(f"{what} {np.median(taken):.3f} CPU s; a plain norm of every gradient {np.median(plain):.3f}")


def _cuda_times(what: str, named: list[tuple[str, Any]], plan: SketchPlan | None, repeats: int) -> None:
    main, device = [], []
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.set_sync_debug_mode("error")
        begin.record()
        start = time.perf_counter()
        measured = gradient_groups(named, 1.0, plan)
        main.append(time.perf_counter() - start)
        end.record()
        torch.cuda.set_sync_debug_mode("default")
        measured.result()
        torch.cuda.synchronize()
        device.append(begin.elapsed_time(end))
    scratch = (torch.cuda.max_memory_allocated() - before) / 1e6
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        gradient_groups(named, 1.0, plan).result()
        torch.cuda.synchronize()
    kernels = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    busy = sum(e.device_time for e in kernels) / 1e3
    print(
        f"{what} training thread {np.median(main) * 1e3:.2f} ms, device {np.median(device):.2f} ms from first to last "
        f"kernel, of which busy {busy:.2f} ms in {len(kernels)} kernels and copies; {scratch:.0f} MB of scratch"
    )


def main() -> None:
    """Time it on one device."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=20)
    chosen = parser.parse_args()
    timed(chosen.device, chosen.repeats)


if __name__ == "__main__":
    main()
