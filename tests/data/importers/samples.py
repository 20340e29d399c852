"""Samples as a framework holds them in memory, from which the dump writers write and the tests expect."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

SMALL = st.floats(-30.0, 0.0, width=32, exclude_max=True)
NON_FINITE = st.sampled_from([float("nan"), float("inf"), float("-inf")])
LOGPROB = st.one_of(SMALL, SMALL, SMALL, NON_FINITE)


@dataclass
class Sample:
    """One sequence: `sampled` says which response tokens the engine generated, the first one always."""

    prompt: list[int]
    response: list[int]
    sampled: list[bool]
    rollout: list[float]
    trainer: list[float]
    advantage: list[float]
    reward: float
    in_loss: bool = True
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def ids(self) -> list[int]:
        return self.prompt + self.response


@st.composite
def samples(draw: st.DrawFn, logprob: st.SearchStrategy[float] = LOGPROB) -> Sample:
    """A sample of any shape; multi-turn where `sampled` has several spans. Log-probs are never exactly 0.0."""
    ids = st.integers(0, 2**31 - 1)
    prompt, response = draw(st.lists(ids, max_size=4)), draw(st.lists(ids, min_size=1, max_size=6))
    n = len(response)

    def values(strategy: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(strategy, min_size=n, max_size=n))

    flat = draw(st.booleans())
    advantage = st.floats(-4, 4, width=32)
    return Sample(
        prompt=prompt,
        response=response,
        sampled=[True, *values(st.booleans())[1:]],
        rollout=values(logprob),
        trainer=values(logprob),
        advantage=[draw(advantage)] * n if flat else values(advantage),
        reward=draw(st.floats(-5, 5, width=32)),
        in_loss=draw(st.booleans()),
    )


def recognisable(prompt: int = 3, response: int = 5, first_id: int = 10) -> Sample:
    """A sample whose log-probs name the token and the absolute position that they score: see `said`."""
    ids = list(range(first_id, first_id + prompt + response))
    return Sample(
        prompt=ids[:prompt],
        response=ids[prompt:],
        sampled=[i != 2 for i in range(response)],
        rollout=[said(t, prompt + i) for i, t in enumerate(ids[prompt:])],
        trainer=[said(t, prompt + i) - 0.5 for i, t in enumerate(ids[prompt:])],
        advantage=[0.25 * i for i in range(response)],
        reward=1.0,
    )


def said(token_id: int, position: int) -> float:
    """A log-prob that only one token at one position can have."""
    return -0.001 * token_id - position


def flat_advantage(sample: Sample) -> bool:
    """Whether the sample's advantage is one value: then it is a column of sequences."""
    return all(a == sample.advantage[0] for a in sample.advantage)
