"""What the TRL hook costs a real training step: paired blocks with the hook on and off, same seeds, in one process.

Run by hand on one GPU, with trl, vllm and datasets importable:

    python tests/bench/bench_hook.py --model DIR --steps 12 --pairs 6 --out hook.json

GRPO of a small model, rollouts by a colocated vLLM, everything TRL's own. A block is a fresh trainer over the same
engine, model and seed; blocks go off-on, on-off, off-on, ... after one of warming up, so that a drift of the machine
hits both arms. If sampling is deterministic (checked: token ids of the off blocks are compared with each other), step k
does the same work in every block and its times are paired. Two figures:

    wall        difference of the paired step times, with a 95 % interval over pairs; also against pairs of off blocks
    main thread time inside the hook's own code on the thread that trains, by wrapping the guard that all of it runs in:
                by the clock, and without the time that the thread waited for a core or the interpreter

and the proof that nothing changed: SHA-256 of the final weights of every block. `--tiny` runs the same on a CPU with a
toy model and no vLLM, to test this script.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process, so that TRL reaches the engine's weights and its random state
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # it draws from a random state of its own
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}
SEED, SKIPPED = 17, 2  # the first steps of a block still compile and allocate


@dataclass
class Block:
    """One short training run. `tokens`: SHA-256 of the completions of each generation."""

    hook: bool
    times: list[float] = field(default_factory=list)
    hook_ms: list[float] = field(default_factory=list)
    hook_cpu_ms: list[float] = field(default_factory=list)
    by_column: list[dict[str, float]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    attach_s: float = 0.0
    close_s: float = 0.0
    writer_cpu_ms: float | None = None
    bytes_written: int = 0
    weights: str = ""
    problems: list[str] = field(default_factory=list)


class Stopwatch:
    """Time inside `Guard.column` on the main thread, by column; an inner column is not counted twice."""

    def __init__(self) -> None:
        self.total, self.cpu, self.by_column, self._inside = 0.0, 0.0, dict[str, float](), False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Wrap the guard's method for a while."""
        from timscope.loggers.guard import Guard

        original = Guard.column
        watch = self

        @contextmanager
        def timed(guard: Guard, name: str) -> Iterator[None]:
            outer = not watch._inside and threading.current_thread() is threading.main_thread()
            watch._inside, start, cpu = watch._inside or outer, time.perf_counter(), time.thread_time()
            try:
                with original(guard, name):
                    yield
            finally:
                if outer:
                    watch._inside = False
                    spent = time.perf_counter() - start
                    watch.total += spent
                    watch.cpu += time.thread_time() - cpu
                    watch.by_column[name] = watch.by_column.get(name, 0.0) + spent

        Guard.column = timed  # type: ignore[method-assign]
        try:
            yield
        finally:
            Guard.column = original  # type: ignore[method-assign]


def reward(block: Block) -> Callable[..., list[float]]:
    """A cheap reward that also hashes the completions, alike in both arms."""

    def share_of_e(completions: list[Any], completion_ids: list[Any], **_: Any) -> list[float]:
        block.tokens.append(
            hashlib.sha256(json.dumps([list(map(int, ids)) for ids in completion_ids]).encode()).hexdigest()
        )
        texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
        return [text.count("e") / (1 + len(text)) for text in texts]

    return share_of_e


def gpu_trainer(options: argparse.Namespace, block: Block, work: Path) -> Any:
    """The real thing: GRPO with a colocated vLLM."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    topics = (
        "a lighthouse",
        "two rivers",
        "the first snow",
        "an old clock",
        "a lost key",
        "the sea",
        "a long train ride",
    )
    prompts = [
        {"prompt": [{"role": "user", "content": f"Tell a story about {topics[i % len(topics)]} and the number {i}."}]}
        for i in range(512)
    ]
    micro = options.completions // options.accumulation
    config = GRPOConfig(
        output_dir=str(work),
        max_steps=options.steps,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=options.accumulation,
        num_generations=options.group,
        max_completion_length=options.length,
        generation_kwargs={"ignore_eos": True},  # full length every time: the same work in every step
        learning_rate=options.learning_rate,
        bf16=options.dtype == "mixed",
        model_init_kwargs={"dtype": "bfloat16" if options.dtype == "bfloat16" else "float32"},
        gradient_checkpointing=False,
        use_vllm=True,
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=0.25,
        vllm_max_model_length=options.length + 128,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        seed=SEED,
        disable_tqdm=True,
    )
    return GRPOTrainer(
        model=str(options.model), reward_funcs=[reward(block)], args=config, train_dataset=Dataset.from_list(prompts)
    )


def tiny_trainer(options: argparse.Namespace, block: Block, work: Path) -> Any:
    """The toy of the tests, on the CPU."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "loggers"))
    import tiny_grpo

    return tiny_grpo.trainer(
        work,
        vllm=False,
        rewards=[reward(block)],
        prompts=[f"{i}+{i + 1}=" for i in range(64)],
        num_generations=options.group,
        max_steps=options.steps,
        per_device_train_batch_size=max(4, options.completions // options.accumulation),
        gradient_accumulation_steps=options.accumulation,
        max_completion_length=options.length,
        learning_rate=1e-3,
    )


def share_engine(eager: bool) -> None:
    """One vLLM engine for all trainers: starting one takes longer than a block."""
    from trl.generation import vllm_generation

    make, made = vllm_generation.LLM, list[Any]()

    def engine(**settings: Any) -> Any:
        if not made:
            made.append(make(**settings, enforce_eager=eager))
        return made[0]

    vllm_generation.LLM = engine


def run_block(options: argparse.Namespace, hook: bool, folder: Path) -> Block:
    """Train once; everything about it in the block."""
    import torch
    from transformers import TrainerCallback, set_seed

    block, watch = Block(hook), Stopwatch()
    set_seed(SEED)
    trainer = (tiny_trainer if options.tiny else gpu_trainer)(options, block, folder / "out")

    class Clock(TrainerCallback):  # type: ignore[misc]
        """A step lasts from the end of the one before, so what the hook does between steps counts."""

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            set_seed(SEED)
            self.last, self.spent = time.perf_counter(), (watch.total, watch.cpu)
            self.columns = dict(watch.by_column)

        def on_step_end(self, *_: Any, **__: Any) -> None:
            now = time.perf_counter()
            block.times.append(now - self.last)
            block.hook_ms.append(1e3 * (watch.total - self.spent[0]))
            block.hook_cpu_ms.append(1e3 * (watch.cpu - self.spent[1]))
            self.last, self.spent = now, (watch.total, watch.cpu)
            before, self.columns = self.columns, dict(watch.by_column)
            block.by_column.append({k: 1e3 * (v - before.get(k, 0.0)) for k, v in self.columns.items()})

    with watch.installed():
        recorder = None
        if hook:
            from timscope.loggers import attach

            start = time.perf_counter()
            recorder = attach(
                trainer, folder / "run", snapshots=_snapshots(options.snapshots), gradients=options.gradients
            )
            block.attach_s = time.perf_counter() - start
            _time_writer(recorder, block)
        trainer.add_callback(Clock())  # after the hook's, so that its own end of step is inside
        trainer.train()
    block.close_s = watch.by_column.get("close", 0.0)
    sha = hashlib.sha256()
    for name, tensor in sorted(trainer.model.state_dict().items()):
        sha.update(name.encode() + tensor.detach().contiguous().view(-1).view(torch.uint8).cpu().numpy().tobytes())
    block.weights = sha.hexdigest()
    if recorder is not None:
        block.problems = recorder.errors
        block.bytes_written = sum(p.stat().st_size for p in (folder / "run").rglob("*") if p.is_file())
    del trainer
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return block


def _snapshots(text: str) -> Any:
    return None if text == "none" else int(text) if text.isdigit() else text


def _time_writer(recorder: Any, block: Block) -> None:
    """CPU time of the writer's thread, read on that thread when the recorder closes."""
    close = recorder.close

    def timed() -> None:
        writer = recorder._writer
        if writer is not None:
            writer.call(lambda: setattr(block, "writer_cpu_ms", 1e3 * time.thread_time() / max(1, len(block.times))))
        close()

    recorder.close = timed


def paired(on: list[Block], off: list[Block]) -> dict[str, float | None]:
    """Mean difference of the paired step times in per cent of the off step, with a 95 % interval over pairs."""
    from scipy import stats

    base = statistics.mean(t for block in off for t in block.times[SKIPPED:])
    each = [
        100 * statistics.mean(a - b for a, b in zip(x.times[SKIPPED:], y.times[SKIPPED:], strict=True)) / base
        for x, y in zip(on, off, strict=True)
    ]
    mean = statistics.mean(each)
    if len(each) == 1:
        return {"percent": mean, "low": None, "high": None, "pairs": 1}
    half = float(stats.t.ppf(0.975, len(each) - 1)) * statistics.stdev(each) / len(each) ** 0.5
    return {"percent": mean, "low": mean - half, "high": mean + half, "pairs": len(each)}


def by_step(on: list[Block], off: list[Block]) -> dict[str, float]:
    """The same from medians over blocks, step by step: robust against a single slow step. Interval: bootstrap."""
    import numpy as np

    x, y = (np.median([b.times[SKIPPED:] for b in blocks], axis=0) for blocks in (on, off))
    relative, rng = 100 * (x - y) / y.mean(), np.random.default_rng(0)
    draws = np.median(rng.choice(relative, (4000, len(relative))), axis=1)
    low, high = np.percentile(draws, [2.5, 97.5])
    return {"percent": float(np.median(relative)), "low": float(low), "high": float(high), "steps": len(relative)}


def by_column(on: list[Block]) -> dict[str, float]:
    """Median milliseconds a step in each column's hook, the largest first."""
    steps = [step for block in on for step in block.by_column[SKIPPED:]]
    medians = {k: round(statistics.median(s.get(k, 0.0) for s in steps), 3) for k in steps[-1]}
    return dict(sorted(medians.items(), key=lambda item: -item[1]))


def summary(blocks: list[Block]) -> dict[str, Any]:
    """All figures, from blocks in the order off-on, on-off, off-on, ..."""
    on, off = ([b for b in blocks if b.hook is arm] for arm in (True, False))
    every = {arm: [t for b in group for t in b.times[SKIPPED:]] for arm, group in (("on", on), ("off", off))}
    hook = [ms for b in on for ms in b.hook_ms[SKIPPED:]]
    cpu = [ms for b in on for ms in b.hook_cpu_ms[SKIPPED:]]
    step_off = statistics.median(every["off"])
    return {
        "step_s": {arm: statistics.median(times) for arm, times in every.items()},
        "paired": paired(on, off),
        "median_by_step": by_step(on, off),
        "control_off_off": paired(off[1::2], off[: len(off) - 1 : 2]) if len(off) > 1 else None,
        "main_thread_ms": {"median": statistics.median(hook), "max": max(hook)},
        "main_thread_cpu_ms": {"median": statistics.median(cpu), "max": max(cpu)},
        "main_thread_percent": 100 * statistics.median(hook) / 1e3 / step_off,
        "main_thread_by_column_ms": by_column(on),
        "writer_thread_cpu_ms_a_step": on[-1].writer_cpu_ms,
        "attach_s": statistics.median(b.attach_s for b in on),
        "close_s": statistics.median(b.close_s for b in on),
        "bytes_a_step": on[-1].bytes_written / max(1, len(on[-1].times)),
        "sampling_deterministic": len({tuple(b.tokens) for b in off}) == 1,
        "same_tokens_on_and_off": len({tuple(b.tokens) for b in blocks}) == 1,
        "off_weights_equal": len({b.weights for b in off}) == 1,
        "weights": {"on": [b.weights[:8] for b in on], "off": [b.weights[:8] for b in off]},
        "final_weights_equal_on_and_off": len({b.weights for b in blocks}) == 1,
        "problems": sorted({p for b in on for p in b.problems}),
    }


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="directory of the model (default: SmolLM2 as the example makes it)")
    parser.add_argument("--steps", type=int, default=12, help="optimizer steps a block")
    parser.add_argument("--pairs", type=int, default=6, help="blocks with the hook, and as many without")
    parser.add_argument("--completions", type=int, default=128, help="completions a step")
    parser.add_argument("--accumulation", type=int, default=8, help="micro-batches a step")
    parser.add_argument("--group", type=int, default=8, help="completions a prompt")
    parser.add_argument("--length", type=int, default=256, help="tokens a completion")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "mixed"], default="bfloat16", help="of the trainer")
    parser.add_argument("--snapshots", default="digest", help="none, digest, or a number of versions")
    parser.add_argument("--learning-rate", type=float, default=1e-6)
    parser.add_argument("--no-gradients", dest="gradients", action="store_false")
    parser.add_argument("--no-deterministic", dest="deterministic", action="store_false")
    parser.add_argument("--eager", action="store_true", help="vLLM without compilation: starts sooner, runs slower")
    parser.add_argument("--tiny", action="store_true", help="a toy on the CPU, no vLLM")
    parser.add_argument("--out", type=Path, help="JSON file for all figures and blocks")
    return parser.parse_args()


def main() -> int:
    """Run the blocks and print; 1 where the hook changed the final weights of a training that is deterministic."""
    options = parse()
    os.environ.update({k: v for k, v in ENVIRONMENT.items() if k not in os.environ})
    import torch

    if options.deterministic:
        torch.use_deterministic_algorithms(True, warn_only=True)
    if not options.tiny:
        share_engine(options.eager)
        if options.model is None:
            from timscope.loggers.examples.smollm2 import model_directory

            options.model = model_directory()
    order = [False, *(arm for k in range(options.pairs) for arm in ((False, True) if k % 2 == 0 else (True, False)))]
    blocks = []
    for number, arm in enumerate(order):
        with tempfile.TemporaryDirectory() as work:
            block = run_block(options, arm, Path(work))
        what = "warm-up" if number == 0 else "on" if arm else "off"
        print(f"block {number} {what:7s} median step {statistics.median(block.times[SKIPPED:]):.4f} s", flush=True)
        if number:
            blocks.append(block)
        if options.out:  # a run that is cut off has its finished blocks
            options.out.write_text(json.dumps([asdict(b) for b in blocks]))
    found = summary(blocks)
    print(json.dumps(found, indent=2))
    if options.out:
        settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()}
        everything = {"settings": settings, "summary": found, "blocks": [asdict(b) for b in blocks]}
        options.out.write_text(json.dumps(everything, indent=1))
    return int(found["off_weights_equal"] and not found["final_weights_equal_on_and_off"])


if __name__ == "__main__":
    sys.exit(main())
