"""How far a cosine estimated from two sketches is off, on pairs of known cosine, next to an ideal sketch.

Run by hand: python tests/bench/bench_sketch.py [SEEDS]. Errors are multiples of 1 / sqrt(4096) = 0.0156; `named` is the
standard error that sketch_cosine gives; `ideal` is a sketch with bucket and sign drawn for every element, on the same
pairs. The same on real gradients: bench_sketch_real.py. What measuring costs: bench_gradients.py.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable

import numpy as np

from timscope.analysis.formulas import sketch_cosine, sketch_vector

BUCKETS = 4096
UNIT = 1 / math.sqrt(BUCKETS)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Of flat float arrays, in float64, a piece at a time."""
    ab = aa = bb = 0.0
    for i in range(0, a.size, 1 << 22):
        x, y = a[i : i + (1 << 22)].astype(np.float64), b[i : i + (1 << 22)].astype(np.float64)
        ab, aa, bb = ab + x @ y, aa + x @ x, bb + y @ y
    return float(ab / math.sqrt(aa * bb))


def ideal(vectors: list[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    """The textbook sketch of vectors of one length."""
    sketches = [np.zeros(BUCKETS) for _ in vectors]
    for i in range(0, vectors[0].size, 1 << 22):
        parts = [v[i : i + (1 << 22)] for v in vectors]
        bucket = rng.integers(0, BUCKETS, parts[0].size, dtype=np.int32)
        sign = rng.integers(0, 2, parts[0].size, dtype=np.int8) * np.int8(2) - np.int8(1)
        for sketch, part in zip(sketches, parts, strict=True):
            sketch += np.bincount(bucket, weights=part * sign, minlength=BUCKETS)
    return sketches


def line(what: str, true: Iterable[float], ours: Iterable[float], best: Iterable[float]) -> None:
    """One row of the error table."""
    t, o, b = (np.array(list(x)) for x in (true, ours, best))
    expected = math.sqrt(np.mean((1 - t**2) ** 2))
    error, reference = (o - t) / UNIT, (b - t) / UNIT
    rmse, best_rmse = (math.sqrt(np.mean(x**2)) for x in (error, reference))
    bias = (
        f", bias {error.mean():+9.5f} = {error.mean() / error.std() * math.sqrt(t.size):+.1f} se" if t.size > 9 else ""
    )
    print(
        f"{what:44s} {t.size:5d} pairs, cosine {t.mean():8.5f}, RMSE {rmse:8.5f} (named {expected:8.5f}, ideal "
        f"{best_rmse:8.5f}){bias}"
    )


def synthetic(seeds: int) -> None:
    """Pairs of known cosine: dense, sparse, heavy-tailed, low rank with heavy columns."""
    n = 100_000
    for kind in ("dense", "one in 100", "Student t, 1.5 df", "rank 2, log-normal columns"):
        for true in (0.0, 0.5, 0.9, 0.99, 1.0):
            rows: list[tuple[float, float, float]] = []
            for seed in range(20 * seeds):
                rng = np.random.default_rng(seed)
                a, noise = rng.standard_normal((2, n))
                if kind == "one in 100":
                    a, noise = a * (rng.random(n) < 0.01), noise * (rng.random(n) < 0.01)
                elif kind.startswith("Student"):
                    a, noise = rng.standard_t(1.5, (2, n))
                elif kind.startswith("rank"):
                    columns = np.exp(1.5 * rng.standard_normal((2, 1, 500))) * rng.standard_normal((2, 2, 500))
                    a, noise = ((rng.standard_normal((200, 2)) @ columns[i % 2]).ravel() for i in range(2))
                noise -= (noise @ a) / (a @ a) * a
                b = true * a / np.linalg.norm(a) + math.sqrt(1 - true**2) * noise / np.linalg.norm(noise)
                made = sketch_cosine(*(sketch_vector(v, "w", BUCKETS, seed) for v in (a, b))).cosine
                rows.append((cosine(a, b), made, sketch_cosine(*ideal([a, b], rng)).cosine))
            line(f"{kind}, {true:g}", *zip(*rows, strict=True))


if __name__ == "__main__":
    synthetic(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
