"""Small language models with whole distributions: what cannot be put into recorded log-probs of sampled tokens alone.

A vocabulary of some hundred words, logits drawn anew for every token with a spread that varies, so that some contexts
are certain and some are flat. The trainer's logits differ by noise whose size follows the spread, heavy-tailed as real
engines' is. Tokens are drawn from what the rollout engine samples from.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from recorded import Array, Columns

from timscope.data.manifest import LogprobMode, Sampling


def log_softmax(x: Array) -> Array:
    """Rows of log-probs."""
    x = x - x.max(1, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(1, keepdims=True)))


def truncated(lp: Array, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0) -> Array:
    """Renormalised after top-k, then top-p and min-p; -inf outside."""
    order = np.argsort(-lp, 1)
    p = np.take_along_axis(np.exp(lp), order, 1)
    keep = np.cumsum(p, 1) - p < top_p
    keep &= p >= min_p * p[:, :1]
    if top_k:
        keep[:, top_k:] = False
    inside = np.zeros_like(keep)
    np.put_along_axis(inside, order, keep, 1)
    return log_softmax(np.where(inside, lp, -np.inf))


def penalised(logits: Array, seen: Array, penalty: float) -> Array:
    """The repetition penalty: logits of ids that occurred are divided by it, or multiplied where negative."""
    return np.where(seen, np.where(logits > 0, logits / penalty, logits * penalty), logits)


def simulated(
    rng: np.random.Generator,
    *,
    sequences: int = 40,
    length: int = 60,
    vocabulary: int = 400,
    noise: float = 0.03,
    temperature: float = 1.0,
    trainer_temperature: float | None = None,
    rollout: str = "processed",
    penalty: float = 1.0,
    bias: tuple[int, float] | None = None,
    quantised: float = 0.0,
    stale: float = 0.0,
    flips: float = 0.0,
    declare: bool = True,
    **cut: Any,
) -> Columns:
    """A run of such models.

    `rollout`: r is of the distribution sampled ("processed"), of the logits ("raw"), or raw divided by the temperature
    after the softmax ("divided"). `trainer_temperature`: of t and the entropy, by default the sampler's. `penalty`,
    `bias` (id, nats) and `cut` (top_p, top_k, min_p) act on the sampler alone. `quantised`: further noise on its
    logits, of one size; `stale`: a drift that its logits share over all tokens; `flips`: share of tokens whose logits
    are of other experts.
    """
    n = sequences * length
    spread = np.exp(rng.normal(1.0, 0.5, (n, 1)))
    unigram = -0.5 * np.log(np.arange(1, vocabulary + 1))
    trainer = (unigram + rng.normal(0, 1, (n, vocabulary))) * spread
    heavy = np.exp(rng.normal(0, 0.6, (n, 1)))
    engine = trainer + noise * spread * heavy * rng.normal(0, 1, (n, vocabulary))
    if quantised:
        engine += spread * quantised * rng.normal(0, 1, (n, vocabulary))
    if stale:
        engine += stale * rng.normal(0, 1, vocabulary) + stale * rng.normal(0, 1, (n, vocabulary))
    if flips:
        flipped = rng.random(n) < flips
        engine[flipped] += 1.5 * rng.normal(0, 1, (int(flipped.sum()), vocabulary))
    number = np.repeat(np.arange(sequences), length)
    biased = engine.copy()
    if bias is not None:
        biased[:, bias[0]] += bias[1]
    sampled = truncated(log_softmax(biased / temperature), **cut) if cut else log_softmax(biased / temperature)
    draw = rng.random((n, 1)) * (1 - 1e-12)
    token = (np.exp(sampled).cumsum(1) > draw).argmax(1)
    if penalty != 1.0:  # all sequences side by side: a penalty needs what was drawn before
        seen = np.zeros((sequences, vocabulary), bool)
        for i in range(length):
            rows = np.arange(sequences) * length + i
            sampled[rows] = log_softmax(penalised(biased[rows], seen, penalty) / temperature)
            token[rows] = (np.exp(sampled[rows]).cumsum(1) > draw[rows]).argmax(1)
            seen[np.arange(sequences), token[rows]] = True
    at = np.arange(n)
    raw = log_softmax(engine)[at, token]
    r = {"processed": sampled[at, token], "raw": raw, "divided": raw / temperature}[rollout]
    t_all = log_softmax(trainer / (temperature if trainer_temperature is None else trainer_temperature))
    tokens = {
        "position": 10 + np.tile(np.arange(length), sequences),
        "token_id": token,
        "mask": np.ones(n, bool),
        "rollout_logprob": np.minimum(r, 0).astype(np.float32),
        "old_logprob": t_all[at, token].astype(np.float32),
        "entropy": -(np.exp(t_all) * t_all).sum(1).astype(np.float32),
    }
    rows = {"prompt_ids": [list(range(10))] * sequences, "num_tokens": [length] * sequences}
    manifest: dict[str, Any] = {}
    if declare:
        mode = "raw" if rollout == "raw" else "processed"
        manifest["sampling"] = Sampling(temperature=temperature, **cut)
        manifest["logprobs"] = {"rollout_logprob": LogprobMode(mode=mode)}
    return Columns(tokens, number, rows, manifest, steps=1)
