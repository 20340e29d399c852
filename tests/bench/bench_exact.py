"""What exactness costs: the exact engine against plain transformers on the same sequences, side by side in one run.

Run by hand: `python tests/bench/bench_exact.py [MODEL]`. Plain transformers is timed twice: one sequence a forward,
and as one right-padded batch, which is faster and not reproducible. Rounds are interleaved and the median is
reported, because a shared machine drifts.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from timscope.replay import paths
from timscope.replay.exact import ExactEngine
from timscope.replay.models import DTYPES, load_model
from timscope.replay.paths import Texts, random_texts

ROUNDS = 3
PROMPTS = [30 + i for i in range(16)]
RESPONSE = 64


def _exact(model: Any, texts: Texts) -> Tensor:
    with ExactEngine(model) as engine:
        engine.plan.wide.update(_PLANS.setdefault(model.dtype, {}))
        result = paths.packed(model, texts)
        _PLANS[model.dtype] = engine.plan.wide
    return result


_PLANS: dict[torch.dtype, dict[Any, bool]] = {}


def _timed(run: Callable[[], Tensor]) -> tuple[float, Tensor]:
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


def main(spec: str = "smollm2") -> None:
    """Print one line a dtype: seconds, ratios, and how far the plain scores are from the exact ones."""
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, 16 sequences of 94-109 tokens, 1024 scored")
    for name in DTYPES:
        model = load_model(spec, name)
        texts = random_texts(model.config.vocab_size, PROMPTS, RESPONSE)
        runs: dict[str, Callable[[], Tensor]] = {
            "exact": lambda m=model, t=texts: _exact(m, t),
            "plain, one by one": lambda m=model, t=texts: paths.batched(m, t, 1),
            "plain, one batch": lambda m=model, t=texts: paths.batched(m, t, 16),
        }
        times: dict[str, list[float]] = {key: [] for key in runs}
        results: dict[str, Tensor] = {}
        with torch.inference_mode():
            _exact(model, texts)  # measures the plan once
            for _ in range(ROUNDS):
                for key, run in runs.items():
                    seconds, results[key] = _timed(run)
                    times[key].append(seconds)
        exact = statistics.median(times["exact"])
        print(f"{name}: exact {exact:.2f} s")
        for key in list(runs)[1:]:
            plain, apart = statistics.median(times[key]), (results[key] - results["exact"]).abs()
            print(
                f"  {key}: {plain:.2f} s, exact/plain {exact / plain:.2f}, |plain - exact| mean {apart.mean():.1e} "
                f"max {apart.max():.1e}"
            )


if __name__ == "__main__":
    main(*sys.argv[1:2])
