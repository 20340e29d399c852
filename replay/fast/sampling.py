"""What a request asks of the generator, checked before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from timscope.data.errors import BadInput


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters of one request. `temperature` 0 is greedy; `top_p` 1 and `top_k` 0 are off.

    `stop`: token ids that end a response (kept as its last token). `seed`: a request's own noise; the same seed and
    prompt give the same response in any batch.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 128
    stop: Sequence[int] = field(default_factory=tuple)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise BadInput(f"temperature is {self.temperature}: give 0 (greedy) or more")
        if not 0 < self.top_p <= 1:
            raise BadInput(f"top_p is {self.top_p}: give a share above 0, up to 1 (off)")
        if self.top_k < 0 or self.max_tokens < 1:
            raise BadInput("top_k must be 0 (off) or more and max_tokens at least 1")

    @property
    def truncates(self) -> bool:
        """Whether part of the vocabulary is cut off."""
        return self.top_p < 1 or self.top_k > 0


@dataclass
class Completion:
    """A response: token ids, the log-probability of each in nats (of the whole distribution at the temperature), the
    share of probability that top-p and top-k kept at each, and why it ended ("stop" or "length")."""

    token_ids: list[int]
    logprobs: list[float]
    kept_mass: list[float]
    finish_reason: str
