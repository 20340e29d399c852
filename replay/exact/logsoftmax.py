"""Log-probability and entropy of one token a row, in float32, each row on its own.

Only the scored token's log-probability is formed: log p = (x_t - m) - log(sum exp(x - m)), with m the row's maximum
(exact in any order), the exponentials in full tiles and the sum as a tree.
"""

from __future__ import annotations

import torch
from torch import Tensor

from timscope.replay.exact.tiles import tiled, tree_sum


def token_logprobs(logits: Tensor, token_ids: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies (nats, float32 [N]) of token_ids [N] under softmax(logits [N, V] / temperature).

    Differentiable in the logits. A temperature of 1 leaves the logits as they are.
    """
    x = logits.to(torch.float32)
    if temperature != 1.0:
        x = x / temperature
    shifted = x - x.detach().amax(-1, keepdim=True)
    weights = tiled(torch.exp, shifted)
    total = tree_sum(weights)
    log_total = tiled(torch.log, total)[:, 0]
    logprob = shifted.gather(-1, token_ids[:, None].to(torch.int64))[:, 0] - log_total
    entropy = log_total - tree_sum(weights * shifted)[:, 0] / total[:, 0]
    return logprob, entropy
