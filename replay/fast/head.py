"""From logits to one token a row: its log-probability and entropy, and drawing it, in one pass over the vocabulary.

Scoring and sampling fold the same blocks in the same order, so the log-probability of a token that was drawn here has
the bits that scoring gives it later. Noise comes from a counter (seed of the request, index in the response, token),
so a draw never depends on the rest of the batch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


@triton.jit
def _tempered(x, temperature):
    """A division, as trainers have it, and because a product could be fused with what follows, in one kernel but not
    in another."""
    return tl.div_rn(x.to(tl.float32), temperature)


@triton.jit
def _fold(x, top, mass, moment):
    """One block x into the running maximum, sum of exp(x - top) and sum of exp(x - top) (x - top)."""
    new = tl.maximum(top, tl.max(x, 0))
    first = top == float("-inf")
    shrink, moved = tl.where(first, 0.0, tl.exp(top - new)), tl.where(first, 0.0, top - new)
    shifted = x - new
    weight = tl.exp(shifted)
    moment = (moment + mass * moved) * shrink + tl.sum(weight * tl.where(weight > 0, shifted, 0.0), 0)
    return new, mass * shrink + tl.sum(weight, 0), moment


@triton.jit
def _score_kernel(logits, tokens, logprob, entropy, temperature, vocabulary, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    top, mass, moment = float("-inf"), 0.0, 0.0
    for start in range(0, vocabulary, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = _tempered(tl.load(logits + row * stride + columns, columns < vocabulary, other=float("-inf")), temperature)
        top, mass, moment = _fold(x, top, mass, moment)
    own = _tempered(tl.load(logits + row * stride + tl.load(tokens + row).to(tl.int64)), temperature)
    log_mass = tl.log(mass)
    tl.store(logprob + row, (own - top) - log_mass)
    tl.store(entropy + row, log_mass - moment / mass)


def token_logprobs(logits: Tensor, tokens: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies (nats, float32 [N]) of tokens [N] under softmax(logits [N, V] / temperature)."""
    rows, vocabulary = logits.shape
    logprob = torch.empty(rows, dtype=torch.float32, device=logits.device)
    entropy = torch.empty_like(logprob)
    _score_kernel[(rows,)](
        logits, tokens, logprob, entropy, temperature, vocabulary, logits.stride(0), BLOCK, num_warps=8
    )
    return logprob, entropy


@triton.jit
def _kept(logits, row, stride, temperature, floor, vocabulary, top, BLOCK: tl.constexpr):
    """Number and summed exp(x - top) of the logits that are at least `floor`."""
    count, mass = 0, 0.0
    for start in range(0, vocabulary, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = _tempered(tl.load(logits + row * stride + columns, columns < vocabulary, other=float("-inf")), temperature)
        count += tl.sum((x >= floor).to(tl.int32), 0)
        mass += tl.sum(tl.where(x >= floor, tl.exp(x - top), 0.0), 0)
    return count, mass


@triton.jit
def _highest_floor(
    logits,
    row,
    stride,
    temperature,
    vocabulary,
    top,
    count_wanted,
    mass_wanted,
    BLOCK: tl.constexpr,
    HALVINGS: tl.constexpr,
):
    """The highest value with as many logits at or above it, and as much mass in them, as wanted: a bisection."""
    low, high = top - 100.0, top + 0.0
    for _ in range(HALVINGS):
        middle = (low + high) * 0.5
        count, mass = _kept(logits, row, stride, temperature, middle, vocabulary, top, BLOCK)
        enough = (count >= count_wanted) & (mass >= mass_wanted)
        low, high = tl.where(enough, middle, low), tl.where(enough, high, middle)
    return low


@triton.jit
def _sample_kernel(
    logits, temperatures, top_p, top_k, seeds, steps, token, logprob, kept_mass, vocabulary, stride,
    BLOCK: tl.constexpr, TRUNCATE: tl.constexpr, HALVINGS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures + row)
    greedy = temperature <= 0.0
    temperature = tl.where(greedy, 1.0, temperature)
    top, mass, moment = float("-inf"), 0.0, 0.0
    for start in range(0, vocabulary, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = _tempered(tl.load(logits + row * stride + columns, columns < vocabulary, other=float("-inf")), temperature)
        top, mass, moment = _fold(x, top, mass, moment)
    floor, kept = float("-inf"), mass
    if TRUNCATE:
        # The order of vLLM and transformers: the k most likely tokens, then the share p of what is left.
        limit, share = tl.load(top_k + row), tl.load(top_p + row)
        if limit > 0:
            floor = _highest_floor(logits, row, stride, temperature, vocabulary, top, limit, -1.0, BLOCK, HALVINGS)
            _, kept = _kept(logits, row, stride, temperature, floor, vocabulary, top, BLOCK)
        if share < 1.0:
            wanted = share * kept
            floor = tl.maximum(
                floor, _highest_floor(logits, row, stride, temperature, vocabulary, top, 0, wanted, BLOCK, HALVINGS)
            )
            _, kept = _kept(logits, row, stride, temperature, floor, vocabulary, top, BLOCK)
    seed, step = tl.load(seeds + row), tl.load(steps + row)
    best, chosen, own = float("-inf"), 0, 0.0
    for start in range(0, vocabulary, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = _tempered(tl.load(logits + row * stride + columns, columns < vocabulary, other=float("-inf")), temperature)
        uniform = tl.rand(seed, step * vocabulary + columns)
        noise = tl.where(greedy, 0.0, -tl.log(-tl.log(tl.maximum(uniform, 1e-10))))
        score = tl.where(x >= floor, x + noise, float("-inf"))
        value, place = tl.max(score, 0, return_indices=True)
        better = value > best
        here = tl.sum(tl.where(columns == start + place, tl.where(columns < vocabulary, x, 0.0), 0.0), 0)
        best = tl.where(better, value, best)
        chosen = tl.where(better, start + place, chosen)
        own = tl.where(better, here, own)
    tl.store(token + row, chosen)
    tl.store(logprob + row, (own - top) - tl.log(mass))
    tl.store(kept_mass + row, kept / mass)


def sample(
    logits: Tensor, temperatures: Tensor, top_p: Tensor, top_k: Tensor, seeds: Tensor, steps: Tensor, truncate: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw one token a row of logits [N, V] by the Gumbel-max rule: (tokens int64, log-probs, kept mass), each [N].

    `temperatures` [N]: 0 for greedy. `top_p` [N] (1: off), `top_k` [N] int32 (0: off), used only with
    `truncate`. `seeds` [N] int64 by request, `steps` [N] int32: index in the response. The log-prob is that of the
    whole distribution at the temperature; log(kept mass) less is that of the truncated one.
    """
    rows, vocabulary = logits.shape
    token = torch.empty(rows, dtype=torch.int64, device=logits.device)
    logprob = torch.empty(rows, dtype=torch.float32, device=logits.device)
    kept = torch.empty_like(logprob)
    _sample_kernel[(rows,)](
        logits, temperatures, top_p, top_k, seeds, steps, token, logprob, kept, vocabulary, logits.stride(0),
        BLOCK, truncate, 24, num_warps=8,
    )  # fmt: skip
    return token, logprob, kept
