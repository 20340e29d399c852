"""How fast the SQL metrics are next to the numpy formulas on the same tokens, both from the Parquet files up.

Run by hand: python tests/bench/bench_metrics.py [TOKENS]. Both times come from one process and one run of the script,
so their ratio holds on any machine; the script fails where the two disagree.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from timscope.analysis.formulas import pair, summarise
from timscope.analysis.metrics import pair_metrics
from timscope.data import RunWriter, open_run

STEPS, LENGTH = 10, 500


def write(path: Path, tokens: int) -> None:
    """`tokens` tokens in STEPS steps of sequences of LENGTH."""
    rng = np.random.default_rng(0)
    n = tokens // STEPS // LENGTH * LENGTH
    with RunWriter(path, strict=True) as writer:
        for step in range(STEPS):
            left = -rng.exponential(1.0, n)
            columns = {
                "sequence": np.repeat(np.arange(n // LENGTH), LENGTH),
                "position": np.tile(np.arange(LENGTH), n // LENGTH),
                "mask": np.ones(n, bool),
                "rollout_logprob": left.astype(np.float32),
                "old_logprob": np.minimum(left + 0.03 * rng.standard_normal(n), 0).astype(np.float32),
            }
            writer.put("tokens", step, columns)
            writer.put("sequences", step, {"sequence": np.arange(n // LENGTH)})
            writer.complete(step)


def main(tokens: int) -> int:
    """Print seconds, tokens a second, the ratio and the largest relative gap; 1 where the gap passes 1e-9."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        write(path, tokens)
        with open_run(path) as run:
            start = time.perf_counter()
            row = pair_metrics(run, by_step=False).row(0, named=True)
            sql = time.perf_counter() - start
            start = time.perf_counter()
            by_step = pair_metrics(run).height
            sql_steps = time.perf_counter() - start
            start = time.perf_counter()
            t = run.tokens()
            cluster = t["step"].to_numpy().astype(np.int64) * 10_000_000 + t["sequence"].to_numpy()
            found = summarise(
                pair(t["rollout_logprob"].to_numpy(), t["old_logprob"].to_numpy(), t["mask"].to_numpy(), cluster)
            )
            numpy = time.perf_counter() - start
    gaps = {k: abs(row[k] - v) / max(abs(v), 1e-300) for k, v in found.items() if math.isfinite(v)}
    worst = max(gaps, key=lambda k: gaps[k])
    print(f"{row['tokens']:,} tokens")
    print(f"SQL, whole run      {sql:6.2f} s  {row['tokens'] / sql / 1e6:5.2f} M tokens/s")
    print(f"SQL, {by_step:2d} steps       {sql_steps:6.2f} s  {row['tokens'] / sql_steps / 1e6:5.2f} M tokens/s")
    print(f"read + formulas     {numpy:6.2f} s  {row['tokens'] / numpy / 1e6:5.2f} M tokens/s")
    print(f"SQL takes {sql / numpy:.2f} of the formulas' time; largest relative gap {gaps[worst]:.1e} ({worst})")
    return int(gaps[worst] > 1e-9)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000))
