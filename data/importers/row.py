"""What a format module makes of one sequence of a dump, before any run column exists."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

# float64, one value a response token. A masked entry is missing (NULL); NaN and infinities are the dump's own.
Floats = NDArray[np.float64]

MAX_INT = 2**31 - 1
TOKEN_FLOATS = (
    "rollout_logprob", "old_logprob", "loss_logprob", "ref_logprob", "entropy", "rollout_is_weight",
)  # fmt: skip


@dataclass
class Row:
    """One sequence of a dump, n response tokens. None: the dump does not have it.

    prompt_ids (p,), token_ids (n,) integers: without `token_ids` the row is text alone and has no token rows. `mask`
    (n,) bool, true in the loss; None means all tokens are. Log-probs (nats), entropy, `rollout_is_weight`,
    `token_advantage` (n,) `Floats`; `token_weight_version` (n,) integers, masked where unknown. `num_tokens` only for
    text rows whose length is known. `prompt_length` only where `prompt_ids` is None: response positions start there.
    `sequence`: row number in the step, default: counted. `extra`: further float columns of `sequences`, under the
    framework's own names. `place`: file and line, for messages.
    """

    prompt_ids: Any = None
    token_ids: Any = None
    mask: Any = None
    rollout_logprob: Floats | None = None
    old_logprob: Floats | None = None
    loss_logprob: Floats | None = None
    ref_logprob: Floats | None = None
    entropy: Floats | None = None
    rollout_is_weight: Floats | None = None
    token_advantage: Floats | None = None
    token_weight_version: Any = None
    reward: float | None = None
    advantage: float | None = None
    weight_version: int | None = None
    uid: str | None = None
    group_id: str | None = None
    finish_reason: str | None = None
    turns: int | None = None
    rank: int | None = None
    micro_batch: int | None = None
    pad_left: int | None = None
    pad_right: int | None = None
    prompt: str | None = None
    completion: str | None = None
    num_tokens: int | None = None
    prompt_length: int = 0
    sequence: int | None = None
    extra: dict[str, float | None] = field(default_factory=dict)
    place: str = ""

    def outside(self) -> tuple[str, Any] | None:
        """The first whole number that no column of a run can hold: (column, the number), or None."""
        for name in ("token_ids", "prompt_ids", "token_weight_version"):
            ids = getattr(self, name)
            if ids is not None and len(ids):
                for value in (np.ma.min(ids), np.ma.max(ids)):
                    if value is not np.ma.masked and abs(int(value)) > MAX_INT:
                        return name, int(value)
        for name in ("num_tokens", "weight_version", "turns", "rank", "micro_batch", "pad_left", "pad_right"):
            value = getattr(self, name)
            if value is not None and abs(int(value)) > MAX_INT:
                return name, int(value)
        return None

    def mismatch(self) -> tuple[str, int, int] | None:
        """The first per-token column that is not as long as the ids: (column, its length, number of ids), or None."""
        length = 0 if self.token_ids is None else len(self.token_ids)
        for name in ("mask", *TOKEN_FLOATS, "token_advantage", "token_weight_version"):
            values = getattr(self, name)
            if values is not None and len(values) != length:
                return name, len(values), length
        return None
