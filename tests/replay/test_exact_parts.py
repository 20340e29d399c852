"""Each part of the engine: right values, and bits that do not depend on what stands around a row."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import linear, silu

from timscope.replay.exact.attention import tile_attention
from timscope.replay.exact.layout import masked_layout, packed_layout, restarting_layout
from timscope.replay.exact.linear import LinearPlan, tile_rows
from timscope.replay.exact.logsoftmax import token_logprobs
from timscope.replay.exact.norm import rms_norm
from timscope.replay.exact.tiles import ELEMENT_TILE, tiled, tree_sum


@given(st.integers(1, 300), st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_tree_sum_is_a_sum_and_rows_do_not_matter(width: int, rows: int) -> None:
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(width))
    total = tree_sum(x)
    assert torch.allclose(total.double(), x.double().sum(-1, keepdim=True), atol=1e-5)
    assert torch.equal(total[-1:], tree_sum(x[-1:]))


@pytest.mark.parametrize("function", [silu, torch.exp, torch.cos, torch.nn.functional.gelu])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tiled_values_do_not_depend_on_size_or_place(function, dtype) -> None:
    x = torch.randn(ELEMENT_TILE * 2 + 77, generator=torch.Generator().manual_seed(0)).to(dtype)
    whole = tiled(function, x)
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-5  # relative; bfloat16 has 8 bits
    assert torch.allclose(whole.float(), function(x.double()).float(), rtol=tolerance, atol=tolerance)
    for start, end in ((0, 1), (5, 18), (ELEMENT_TILE - 3, ELEMENT_TILE + 40), (ELEMENT_TILE * 2, x.numel())):
        assert torch.equal(tiled(function, x[start:end]), whole[start:end])


def test_plain_silu_depends_on_size_so_the_tiles_are_needed() -> None:
    x = torch.randn(391 * 16, generator=torch.Generator().manual_seed(0))
    alone = torch.cat([silu(row) for row in x.view(16, 391)])
    assert not torch.equal(alone, silu(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(97, 391), (424, 72), (576, 192)])
def test_linear_rows_do_not_depend_on_the_number_of_rows(dtype, shape) -> None:
    generator = torch.Generator().manual_seed(1)
    x, weight = (torch.randn(n, shape[0], generator=generator).to(dtype) for n in (530, shape[1]))
    whole = LinearPlan().linear(x, weight, None)
    assert torch.equal(whole, tile_rows(x, weight, None))
    for rows in (1, 2, 15, 16, 17, 300):
        assert torch.equal(LinearPlan().linear(x[-rows:], weight, None), whole[-rows:])
    error = (whole.double() - linear(x.double(), weight.double())).abs().max()
    assert error < (2.0 if dtype == torch.bfloat16 else 1e-3)


def test_gradients_are_those_of_the_plain_functions() -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(19, 37, generator=generator).requires_grad_()
    weight, bias = (torch.randn(*s, generator=generator).requires_grad_() for s in ((23, 37), (23,)))
    scale = torch.randn(23, generator=generator).requires_grad_()
    ids = torch.arange(19)
    leaves = (x, weight, bias, scale)

    hidden = rms_norm(tiled(silu, LinearPlan().linear(x, weight, bias)), scale, 1e-6)
    mine = torch.autograd.grad(token_logprobs(hidden, ids)[0].sum(), leaves)
    plain = silu(linear(x, weight, bias))
    plain = scale * (plain * torch.rsqrt(plain.pow(2).mean(-1, keepdim=True) + 1e-6))
    theirs = torch.autograd.grad(torch.log_softmax(plain, -1).gather(-1, ids[:, None]).sum(), leaves)
    for a, b in zip(mine, theirs, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)


@given(st.floats(0.1, 3.0), st.integers(2, 500))
@settings(max_examples=20, deadline=None)
def test_logprob_and_entropy_match_float64(temperature: float, vocabulary: int) -> None:
    logits = 5 * torch.randn(4, vocabulary, generator=torch.Generator().manual_seed(vocabulary))
    ids = torch.arange(4) % vocabulary
    logprob, entropy = token_logprobs(logits, ids, temperature)
    wanted = torch.log_softmax(logits.double() / temperature, -1)
    assert torch.allclose(logprob.double(), wanted.gather(-1, ids[:, None])[:, 0], rtol=1e-5, atol=1e-5)
    assert torch.allclose(entropy.double(), -(wanted.exp() * wanted).sum(-1), rtol=1e-4, atol=1e-4)


def _reference(q, k, v, scaling):
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[0] // k.shape[0], 0) for x in (k, v))
    scores = q @ k.transpose(1, 2) * scaling
    hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(scores.shape[2] - scores.shape[1] + 1)
    return (scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v).transpose(0, 1)


@given(st.lists(st.integers(1, 150), min_size=1, max_size=4))
@settings(max_examples=12, deadline=None)
def test_attention_is_right_and_a_sequence_ignores_its_neighbours(lengths: list[int]) -> None:
    generator = torch.Generator().manual_seed(sum(lengths))
    rows, device = sum(lengths), torch.device("cpu")
    q, k, v = (torch.randn(rows, heads, 12, generator=generator) for heads in (6, 2, 2))
    out = tile_attention(q, k, v, packed_layout(lengths, device), 0.3)
    start = 0
    for length in lengths:
        part = slice(start, start + length)
        alone = tile_attention(q[part], k[part], v[part], packed_layout([length], device), 0.3)
        assert torch.equal(alone, out[part])
        assert torch.allclose(alone.double(), _reference(q[part], k[part], v[part], 0.3), atol=1e-5)
        last = tile_attention(q[part][-1:], k[part], v[part], masked_layout(None, 1, 1, length, device), 0.3)
        assert torch.equal(last[0], alone[-1])
        start += length


def test_positions_that_restart_are_separate_sequences() -> None:
    lengths, device = [5, 1, 20], torch.device("cpu")
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    found, wanted = restarting_layout(positions), packed_layout(lengths, device)
    assert found.query_count == wanted.query_count
    for a, b in zip(found.groups, wanted.groups, strict=True):
        assert torch.equal(a.key_rows, b.key_rows) and torch.equal(a.query_rows, b.query_rows)
