"""The forward pass of the fast engine: packed rows in, final hidden states or log-probabilities out.

Shapes: T rows of S sequences end to end. With a cache, keys and values of earlier tokens lie in pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding

from timscope.replay.fast import elementwise
from timscope.replay.fast.attention import attention
from timscope.replay.fast.cache import Cache
from timscope.replay.fast.head import token_logprobs
from timscope.replay.fast.matmul import Plan
from timscope.replay.fast.weights import Layer, Weights

# bf16 logits of one slice of rows: under 1 GiB at any vocabulary in use, and enough rows to fill the device.
LOGIT_BYTES = 2**29


@dataclass
class Batch:
    """Where S packed sequences lie: `positions` [T], `starts` [S + 1], `lengths` [S] (keys a sequence), all int32."""

    positions: Tensor
    starts: Tensor
    lengths: Tensor
    longest: int
    rows: Tensor | None = None  # [T] rows of the cache that the tokens are written to
    table: Tensor | None = None  # [S, pages] pages of each sequence

    @classmethod
    def packed(cls, lengths: Sequence[int], device: torch.device) -> Batch:
        """Whole sequences of the lengths given, from position 0 on."""
        sizes = torch.tensor(lengths, dtype=torch.int32)
        starts = torch.zeros(len(lengths) + 1, dtype=torch.int32)
        starts[1:] = sizes.cumsum(0)
        positions = torch.arange(int(starts[-1])) - starts[:-1].repeat_interleave(sizes)
        positions, starts, sizes = (x.to(device, torch.int32, non_blocking=True) for x in (positions, starts, sizes))
        return cls(positions, starts, sizes, max(lengths))


class FastModel:
    """The exact forward over `weights`; `plan` remembers which products cuBLAS may compute."""

    def __init__(self, weights: Weights, plan: Plan | None = None) -> None:
        self.weights, self.plan = weights, plan or Plan()

    def _block(
        self, index: int, layer: Layer, x: Tensor, residual: Tensor, batch: Batch, cache: Cache | None
    ) -> tuple[Tensor, Tensor]:
        """x is already normed; returns (MLP output not yet added, residual)."""
        w, plan = self.weights, self.plan
        qkv = plan.linear(x, layer.qkv, layer.qkv_bias)
        elementwise.rotate(qkv, w.rotary, batch.positions, w.q_heads, w.kv_heads, w.dim, layer.head_norms, w.eps)
        heads = qkv.view(-1, w.q_heads + 2 * w.kv_heads, w.dim)
        q, k, v = heads.split([w.q_heads, w.kv_heads, w.kv_heads], 1)
        if cache is None:
            mixed = attention(q, k, v, batch.starts, batch.lengths, batch.longest)
        else:
            if batch.rows is None or batch.table is None:
                raise ValueError("a batch over a cache needs rows and a table")
            keys, values = cache.store(index, k, v, batch.rows)
            mixed = attention(
                q, keys, values, batch.starts, batch.lengths, batch.longest, table=batch.table, page=cache.page
            )
        added = plan.linear(mixed.view(x.shape[0], -1), layer.out, layer.out_bias)
        x, residual = elementwise.add_rms_norm(added, residual, layer.mlp_norm, w.eps)
        return plan.linear(elementwise.swiglu(plan.linear(x, layer.gate_up)), layer.down), residual

    def hidden(self, ids: Tensor, batch: Batch, cache: Cache | None = None) -> Tensor:
        """Final normed hidden states [T, H] of token ids [T]; with a cache, the tokens' keys and values go into it."""
        w = self.weights
        residual = embedding(ids, w.embedding)
        x = elementwise.rms_norm(residual, w.layers[0].norm, w.eps)
        for i, layer in enumerate(w.layers):
            out, residual = self._block(i, layer, x, residual, batch, cache)
            following = w.layers[i + 1].norm if i + 1 < len(w.layers) else w.norm
            x, residual = elementwise.add_rms_norm(out, residual, following, w.eps)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [N, V] of hidden states [N, H], all at once."""
        return self.plan.linear(hidden, self.weights.head)

    def logprobs(self, hidden: Tensor, targets: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies [N] of targets [N] from hidden states [N, H], a slice of rows at a time."""
        rows = max(256, LOGIT_BYTES // (self.weights.head.shape[0] * hidden.element_size()) // 256 * 256)
        parts = [
            token_logprobs(self.logits(h), t, temperature)
            for h, t in zip(hidden.split(rows), targets.split(rows), strict=True)
        ]
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
