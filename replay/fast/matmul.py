"""Matrix products whose rows do not depend on how many rows there are.

The definition of a row is a sum over K in order, in float32 on the tensor cores, rounded once: `sequential` computes it
for any number of rows. cuBLAS gives the same bits wherever it does not split K, which it does for some shapes at few
rows. `Plan` finds, for each (K, N), the smallest row count from which cuBLAS was equal at every count tried; products
with fewer rows are padded up to it, and a shape for which there is none takes `sequential`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import linear

# Row counts tried: powers of two and what lies beside them, since heuristics switch at tile edges.
COUNTS = (
    *(1, 2, 8, 16, 17, 32, 33, 64, 65, 96, 128, 129, 192, 256, 257, 384, 512, 513, 768, 1024),
    *(1536, 2048, 3000, 4096, 5000, 8192, 8193, 12288, 16384),
)
LARGEST = 16384


@triton.jit
def _matmul_kernel(
    x, w, b, y, rows, n_out, k_in, sx, sw, sy,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(rows, M), tl.cdiv(n_out, N)
    width = GROUP * tiles_n
    first = pid // width * GROUP
    size = tl.minimum(tiles_m - first, GROUP)
    tile_m, tile_n = first + pid % width % size, pid % width // size
    at_m, at_n, at_k = tile_m * M + tl.arange(0, M), tile_n * N + tl.arange(0, N), tl.arange(0, K)
    row, column = (at_m % rows).to(tl.int64), (at_n % n_out).to(tl.int64)
    total = tl.zeros((M, N), tl.float32)
    for k in range(0, tl.cdiv(k_in, K)):
        inside = at_k < k_in - k * K
        left = tl.load(x + row[:, None] * sx + k * K + at_k[None, :], inside[None, :], other=0.0)
        right = tl.load(w + column[None, :] * sw + k * K + at_k[:, None], inside[:, None], other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
    if BIAS:
        total += tl.load(b + column)[None, :].to(tl.float32)
    keep = (at_m[:, None] < rows) & (at_n[None, :] < n_out)
    tl.store(y + at_m[:, None].to(tl.int64) * sy + at_n[None, :], total.to(y.dtype.element_ty), keep)


def sequential(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [T, K] times weight [N, K] transposed: the definition, and the fallback where cuBLAS splits K."""
    rows, k_in = x.shape
    out = x.new_empty(rows, weight.shape[0])
    small = x.dtype == torch.float32
    m, n, k = (64, 64, 32) if small else (128, 128, 64)
    grid = (triton.cdiv(rows, m) * triton.cdiv(weight.shape[0], n),)
    _matmul_kernel[grid](
        x, weight, weight if bias is None else bias, out, rows, weight.shape[0], k_in,
        x.stride(0), weight.stride(0), out.stride(0), m, n, k, 8, bias is not None,
        num_warps=4 if small else 8, num_stages=3,
    )  # fmt: skip
    return out


@dataclass
class Plan:
    """For each (K, N, dtype, bias): the smallest row count from which cuBLAS is bit-equal to `sequential`, or None."""

    floors: dict[tuple[int, int, torch.dtype, bool], int | None] = field(default_factory=dict)
    refused: dict[tuple[int, int, torch.dtype, bool], list[int]] = field(default_factory=dict)

    def probe(self, weight: Tensor, bias: Tensor | None = None) -> int | None:
        """Measure one shape on this device (once); returns its floor."""
        key = (weight.shape[1], weight.shape[0], weight.dtype, bias is not None)
        if key in self.floors:
            return self.floors[key]
        generator = torch.Generator(weight.device).manual_seed(20)
        limit = min(LARGEST, max(2048, 2**30 // weight.shape[0]))
        x = torch.randn(limit, weight.shape[1], generator=generator, device=weight.device).to(weight.dtype)
        wanted = sequential(x, weight, bias)
        unequal = [n for n in COUNTS if n <= limit and not torch.equal(linear(x[:n], weight, bias), wanted[:n])]
        self.refused[key] = unequal
        above = [n for n in COUNTS if n <= limit and n > max(unequal, default=0)]
        # A shape whose largest counts differ is not cuBLAS's to compute.
        self.floors[key] = above[0] if above and above[0] <= 1024 else None
        return self.floors[key]

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [T, K] -> [T, N], with the bits of `sequential`."""
        if x.dtype == torch.float32:  # cuBLAS passed the probe here and differed at row counts between those tried
            return sequential(x, weight, bias)
        floor = self.probe(weight, bias)
        if floor is None or x.shape[0] > LARGEST:
            return sequential(x, weight, bias)
        if x.shape[0] >= floor:
            return linear(x, weight, bias)
        padded = x.new_zeros(floor, x.shape[1])
        padded[: x.shape[0]] = x
        return linear(padded, weight, bias)[: x.shape[0]]
