"""The count-sketch of a gradient: a vector of any length as `buckets` numbers that keep its angles to other vectors.

Every element is added, with a sign, to one bucket (Charikar, Chen, Farach-Colton 2002). Bucket and sign are a fixed
function of (seed, parameter name, offset inside the parameter), so two programs that never met make sketches that can
be compared, whatever their device, dtype or order of parameters. The sketch is linear: a group's sketch is the sum over
its parameters, and the sketch of a difference is the difference of sketches.

The hash is drawn for blocks of 64 neighbours, which makes it cheap on an accelerator. With a 64-bit word a block,

    bucket = (word - lane) mod buckets          lane = offset mod 64: a block never collides with itself
    sign   = sign of the block's word * column sign of (offset mod 8128)

Two elements of different blocks share a bucket with probability 1 / buckets and independent block signs, so the inner
product of two sketches has the true inner product as its mean over seeds. The column signs, 64 * 127 of them, keep
blocks that are multiples of each other (a gradient of low rank, heavy columns) from meeting with all their lanes at
once; the period is 127 blocks because no usual width is a multiple of that. What is left is the variance of an ideal
sketch, which draws bucket and sign for every element on its own.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from timscope.analysis.formulas.selection import FloatArray

METHOD = "blocks-64x127"
LANES, PERIOD = 64, 127
_CHUNK = LANES * PERIOD * 512  # elements hashed at a time
_Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class SketchCosine:
    """A cosine estimated from two sketches and the standard deviation of its error over seeds."""

    cosine: float
    se: float


def sketch_vector(values: npt.ArrayLike, name: str, buckets: int = 4096, seed: int = 0) -> FloatArray:
    """The sketch of one parameter's gradient, any shape -> [buckets], float64.

    `values` in the parameter's own (row-major) order, unscaled. `name`: the parameter's name with the prefixes that
    wrappers add (`module.`, `_orig_mod.`) removed. Sum over parameters for a group or for the whole model.
    ValueError: buckets is not a power of two in 64..65536.
    """
    check_buckets(buckets)
    flat = np.asarray(values).reshape(-1)
    key, column_key = _key(f"{seed}:{name}"), _key(str(seed))
    column_sign = _signs(_words(column_key, np.arange(LANES * PERIOD)))
    sketch = np.zeros(buckets)
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK].astype(np.float64)
        offset = np.arange(start, start + part.size)
        word = np.repeat(_words(key, offset[::LANES] // LANES), LANES)[: part.size]
        bucket = (word - (offset % LANES).astype(np.uint64)) % np.uint64(buckets)
        signed = part * _signs(word) * column_sign[offset % (LANES * PERIOD)]
        sketch += np.bincount(bucket.astype(np.int64), weights=signed, minlength=buckets)
    return sketch


def sketch_norm(sketch: npt.ArrayLike) -> float:
    """L2 norm of the sketched vector. Its square is unbiased with relative standard error sqrt(2 / buckets)."""
    return float(np.linalg.norm(np.asarray(sketch, dtype=np.float64)))


def sketch_cosine(a: npt.ArrayLike, b: npt.ArrayLike) -> SketchCosine:
    """Cosine of two sketched vectors, each [buckets], made with equal buckets, seed and method.

    The sketches' own norms divide, not the true ones: errors of the product and of the norms cancel, and the standard
    error falls from sqrt((1 + cos^2) / buckets) to (1 - cos^2) / sqrt(buckets), that of a correlation coefficient. NaN
    where a vector is zero or not finite. ValueError: the shapes differ.
    """
    x, y = np.asarray(a, dtype=np.float64).reshape(-1), np.asarray(b, dtype=np.float64).reshape(-1)
    if x.shape != y.shape:
        raise ValueError(f"sketches of {x.size} and {y.size} buckets cannot be compared")
    size = sketch_norm(x) * sketch_norm(y)
    if not (math.isfinite(size) and size > 0):
        return SketchCosine(float("nan"), float("nan"))
    cosine = min(1.0, max(-1.0, float(x @ y) / size))
    return SketchCosine(cosine, (1 - cosine**2) / math.sqrt(x.size))


def check_buckets(buckets: int) -> None:
    """ValueError unless `buckets` is a power of two in 64..65536."""
    if not 64 <= buckets <= 65_536 or buckets & (buckets - 1):
        raise ValueError(f"a sketch of {buckets} buckets: take a power of two from 64 to 65536")


def _key(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _words(key: int, index: npt.NDArray[np.int64]) -> _Words:
    """A 64-bit word for each index: splitmix64 (Steele, Lea, Flood 2014) as a counter-based generator."""
    x = np.uint64(key) + (index.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)), dtype=np.uint64)


def _signs(word: _Words) -> FloatArray:
    """-1 where the top bit is set, else +1."""
    return 1.0 - 2.0 * (word >> np.uint64(63)).astype(np.float64)
