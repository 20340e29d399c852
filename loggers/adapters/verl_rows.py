"""Rows of verl's batches: the same fields, whether they came jagged out of TransferQueue or padded in a DataProto."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from timscope.loggers.adapters.columns import advantages, one_version, only, totals
from timscope.loggers.arrays import Array
from timscope.loggers.bundle import Step

_TRAINER_COLUMNS = {
    "old_logprob": "old_log_probs",
    "ref_logprob": "ref_log_prob",
    "entropy": "entropy",
    "rollout_is_weight": "rollout_is_weights",
}
# One value a response token, aligned to `responses`.
TOKEN_FIELDS = (
    "responses",
    "response_mask",
    "loss_mask",
    "rollout_log_probs",
    *_TRAINER_COLUMNS.values(),
    "advantages",
    "rm_scores",
    "token_level_rewards",
)


def fill_rows(
    step: Step,
    found: Mapping[str, Sequence[Array]],
    *,
    uid: Sequence[str],
    group_id: Sequence[str | None],
    versions: tuple[Sequence[Any], Sequence[Any]],
    turns: Sequence[int] | None,
) -> None:
    """Put rows into `step`. `found`: one array a row under verl's field names, `prompts` and what there is of
    `TOKEN_FIELDS`. `versions`: the weights under which generation began and ended.

    `response_mask` is the mask of the loss. Rejection sampling takes tokens out of it; `loss_mask` is the mask as it
    was when verl sampled, and so tells a rejected token, whose rollout log-prob is kept, from a tool's, which nobody
    sampled.
    """
    mask = found["response_mask"]
    sampled = found.get("loss_mask", mask)
    version, mixed = one_version(*versions)
    rollout = found.get("rollout_log_probs")
    rows = step.rollout(
        prompt_ids=found["prompts"],
        completion_ids=found["responses"],
        rollout_logprob=None if rollout is None else only(rollout, sampled),
        weight_version=version,
        uid=uid,
        group_id=group_id,
        turns=turns,
    )
    step.trainer(
        rows=rows,
        mask=[row.astype(bool) for row in mask],
        **{column: found.get(field) for column, field in _TRAINER_COLUMNS.items()},
    )
    score = found.get("rm_scores")
    paid = found.get("token_level_rewards", score)
    step.scores(
        rows=rows,
        reward=None if paid is None else totals(paid),
        rewards={} if score is None else {"score": totals(score)},
        advantage=advantages(found["advantages"], mask) if "advantages" in found else None,
    )
    rejected = sum(int((s.astype(bool) & ~m.astype(bool)).sum()) for s, m in zip(sampled, mask, strict=True))
    step.metrics({"timscope/mixed_weight_versions": mixed, "timscope/rejected_tokens": rejected})
