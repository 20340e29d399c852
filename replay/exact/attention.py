"""Causal attention in tiles of 16 queries by 64 keys, in float32, with one fixed order.

Each product is a batched matrix product of one constant shape, [BATCH, 16, D] x [BATCH, D, 64] and [BATCH, 16, 64] x
[BATCH, 64, D]. A row's maximum is taken over all its blocks first (exact in any order); block results are then added in
the order of the blocks. Blocks after the last key add an exact zero, so a longer neighbour changes nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from timscope.replay.exact.layout import KEY_BLOCK, QUERY_TILE, Group, Layout, masked_layout, restarting_layout
from timscope.replay.exact.tiles import tiled, tree_sum

NAME = "timscope_exact"
BATCH = 64


def _fixed_bmm(a: Tensor, b: Tensor) -> Tensor:
    """a [n, i, k] @ b [n, k, j], always BATCH products a call."""
    count = a.shape[0]
    missing = -count % BATCH
    if missing:
        a = torch.cat([a, a.new_zeros(missing, *a.shape[1:])])
        b = torch.cat([b, b.new_zeros(b.shape[2], b.shape[1]).t().expand(missing, *b.shape[1:])])
    parts = [torch.bmm(a[i : i + BATCH], b[i : i + BATCH]) for i in range(0, count, BATCH)]
    return torch.cat(parts)[:count] if len(parts) > 1 else parts[0][:count]


def _rows(flat: Tensor, index: Tensor) -> Tensor:
    """flat [rows + 1, heads, D] at index [...]; -1 reads the last row, which is zeros."""
    rows = torch.where(index < 0, flat.shape[0] - 1, index).view(-1)
    return flat.index_select(0, rows).view(*index.shape, *flat.shape[1:])


def _group(q: Tensor, k: Tensor, v: Tensor, group: Group, scaling: float) -> Tensor:
    """One group: q [rows + 1, Hq, D], k and v [rows + 1, Hkv, D] -> [T, 16, Hq, D] float32."""
    tiles, width = group.key_rows.shape
    blocks, heads, kv_heads, dim = width // KEY_BLOCK, q.shape[1], k.shape[1], q.shape[2]
    repeat = heads // kv_heads
    shape = (tiles, kv_heads, repeat, blocks)
    q_tiles = _rows(q, group.query_rows).view(tiles, 1, QUERY_TILE, kv_heads, repeat, dim).permute(0, 3, 4, 1, 2, 5)
    keys, values = (
        _rows(x, group.key_rows)
        .view(tiles, blocks, KEY_BLOCK, kv_heads, 1, dim)
        .permute(0, 3, 4, 1, 2, 5)
        .expand(*shape, KEY_BLOCK, dim)
        .reshape(-1, KEY_BLOCK, dim)
        for x in (k, v)
    )
    left = q_tiles.expand(*shape, QUERY_TILE, dim).reshape(-1, QUERY_TILE, dim)
    scores = _fixed_bmm(left, keys.transpose(1, 2)).view(tiles, heads, blocks, QUERY_TILE, KEY_BLOCK) * scaling
    key_positions = torch.arange(width, device=q.device).view(1, blocks, 1, KEY_BLOCK)
    hidden = key_positions > group.query_positions.view(tiles, 1, QUERY_TILE, 1)
    scores = scores.masked_fill(hidden[:, None], float("-inf"))
    top = scores.detach().amax(dim=(2, 4), keepdim=True)
    weights = tiled(torch.exp, scores - top)
    sums = tree_sum(weights)[..., 0]
    products = _fixed_bmm(weights.view(-1, QUERY_TILE, KEY_BLOCK), values).view(tiles, heads, blocks, QUERY_TILE, dim)
    total, out = sums[:, :, 0], products[:, :, 0]
    for j in range(1, blocks):
        total, out = total + sums[:, :, j], out + products[:, :, j]
    return (out / total[..., None]).transpose(1, 2)


def tile_attention(q: Tensor, k: Tensor, v: Tensor, layout: Layout, scaling: float) -> Tensor:
    """q [rows, Hq, D], k and v [key rows, Hkv, D] in any dtype -> [rows, Hq, D] in q's dtype. Differentiable."""
    wide = [torch.cat([x.to(torch.float32), x.new_zeros(1, *x.shape[1:], dtype=torch.float32)]) for x in (q, k, v)]
    out = wide[0].new_zeros(wide[0].shape)  # the extra row swallows the results of absent queries
    for group in layout.groups:
        rows = torch.where(group.query_rows < 0, layout.query_count, group.query_rows).view(-1)
        result = _group(wide[0], wide[1], wide[2], group, scaling)
        out.index_copy_(0, rows, result.reshape(-1, *result.shape[2:]))
    return out[: layout.query_count].to(q.dtype)


def exact_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Layout | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    exact_layout: Layout | None = None,
    position_ids: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The transformers attention interface: query [B, Hq, L, D], key and value [B, Hkv, S, D] -> [B, L, Hq, D]."""
    if dropout:
        raise ValueError("the exact engine has no attention dropout: set attention_dropout to 0")
    batch, heads, length, dim = query.shape
    layout = exact_layout or attention_mask
    if layout is None and position_ids is not None and length == key.shape[2]:
        layout = restarting_layout(position_ids.expand(batch, length))  # a padding-free trainer packs rows this way
    layout = layout or masked_layout(None, batch, length, key.shape[2], query.device)
    flat = [x.transpose(1, 2).reshape(-1, x.shape[1], dim) for x in (query, key, value)]
    out = tile_attention(flat[0], flat[1], flat[2], layout, dim**-0.5 if scaling is None else scaling)
    return out.view(batch, length, heads, dim), None


def exact_mask(
    batch_size: int, q_length: int, kv_length: int, attention_mask: Tensor | None = None, **options: Any
) -> Layout | None:
    """The transformers mask interface: turns the padding mask into a layout, once a forward."""
    if attention_mask is None:
        return None
    return masked_layout(attention_mask[:, :kv_length], batch_size, q_length, kv_length, attention_mask.device)


def register() -> None:
    """Make the name known to transformers. A name in a table: no model uses it unless its own config asks for it."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, exact_attention)
    AttentionMaskInterface.register(NAME, exact_mask)
