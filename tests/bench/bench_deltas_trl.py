"""What a lossless delta of the weights costs in a real GRPO run: share of a full snapshot, by learning rate and dtype.

    python tests/bench/bench_deltas_trl.py --model DIR [--steps 8]

TRL with a colocated vLLM on one GPU; every version is stored (`snapshots=1000`: the first whole, then deltas), and the
last one restored is compared bit for bit with what the trainer holds.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import bench_hook


def measure(options: argparse.Namespace, dtype: str, learning_rate: float, work: Path) -> str:
    """One run; its line of the table."""
    import torch
    from transformers import set_seed

    from timscope.data import open_run
    from timscope.loggers import attach

    set_seed(bench_hook.SEED)
    trainer: Any = bench_hook.gpu_trainer(
        argparse.Namespace(**{**vars(options), "dtype": dtype, "learning_rate": learning_rate}),
        bench_hook.Block(True),
        work / "out",
    )
    trainer.args.lr_scheduler_type = "constant"
    attach(trainer, work / "run", snapshots=1000, strict=True)
    started = time.perf_counter()
    trainer.train()
    took = time.perf_counter() - started
    sizes = {
        p.parent.name: p.stat().st_size
        for p in (work / "run/weights").rglob("*")
        if p.suffix in (".safetensors", ".zst")
    }
    first, *deltas = [sizes[name] for name in sorted(sizes)]
    state = {k: v for k, v in trainer.model.state_dict().items() if k != "lm_head.weight"}
    with open_run(work / "run") as run:
        started = time.perf_counter()
        weights = run.weights(options.steps)
        equal = all(
            torch.frombuffer(bytearray(weights[name].data), dtype=torch.uint8).equal(
                tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
            )
            for name, tensor in state.items()
        )
        restored = time.perf_counter() - started
    shares = [100 * size / first for size in deltas]
    text = ", ".join(f"{share:.2f}" for share in shares)
    return (
        f"{dtype:9} lr {learning_rate:g}: full {first / 2**20:.0f} MiB, deltas {text} % "
        f"(mean {sum(shares) / len(shares):.2f} %); version {options.steps} equal bit for bit: {equal}; "
        f"restore {restored:.1f} s; {took / options.steps:.2f} s a step"
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--completions", type=int, default=64)
    parser.add_argument("--accumulation", type=int, default=4)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--learning-rate", nargs="+", type=float, default=[1e-6, 1e-5])
    options = parser.parse_args()
    os.environ.update({k: v for k, v in bench_hook.ENVIRONMENT.items() if k not in os.environ})
    bench_hook.share_engine(eager=True)
    for dtype in options.dtype:
        for learning_rate in options.learning_rate:
            with tempfile.TemporaryDirectory() as work:
                print(measure(options, dtype, learning_rate, Path(work)), flush=True)


if __name__ == "__main__":
    main()
