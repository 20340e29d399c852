"""slime's samples as rows: the rollout sample and the train sample of one sequence, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from timscope.data.errors import BadInput
from timscope.data.importers.base import ROW_FAULTS, Findings
from timscope.data.importers.columns import Row
from timscope.data.importers.files import note_unusable
from timscope.data.importers.json_values import text
from timscope.data.importers.numbers import floats, integers, number
from timscope.data.importers.slime_layout import micro_batches, note_missing
from timscope.data.importers.suspects import scored
from timscope.data.importers.versions import weight_versions

# train sample -> our column
_TRAINER = {
    "log_probs": "old_logprob",
    "ref_log_probs": "ref_logprob",
    "entropy": "entropy",
    "advantages": "token_advantage",
}
# what slime makes of the engine's finish reason -> the reason
_FINISH = {"completed": "stop", "truncated": "length", "aborted": "abort"}

Sample = Mapping[str, Any]


def rows(step: int, rollout: Sample | None, train: Sample | None, findings: Findings) -> Iterator[Row]:
    """One row a rollout, numbered as in the rollout dump; rollouts that were not trained on have an empty loss mask."""
    made: list[Sample] = list(rollout["samples"]) if rollout else []
    trained = _by_position(step, train, findings) if train else {}
    layout = micro_batches(train) if train else {}
    raw = np.asarray(train.get("raw_reward", ())).tolist() if train else []
    for position in sorted({*trained, *range(len(made))}):
        sample = made[position] if position < len(made) else {}
        if rollout and not sample:
            findings.note("integrity", "train samples without a rollout in the rollout dump", step=step,
                          rollout_position=position)  # fmt: skip
        place = f"{step}.pt sample {position}"
        try:
            row = _row(position, place, sample, trained.get(position, {}), findings)
        except ROW_FAULTS as error:
            note_unusable(place, error, findings)
            continue
        if train and position not in trained:
            findings.note("untrained-rollouts", "rollouts that no rank trained on: not in the loss", step=step,
                          sequence=position)  # fmt: skip
            row.mask = np.zeros(len(row.token_ids), bool)
        row.micro_batch = layout.get(position)
        if row.reward is None and position < len(raw):
            row.reward = number(raw[position], findings, "raw_reward", row.place)
        yield row


def _by_position(step: int, train: Sample, findings: Findings) -> dict[int, Sample]:
    """Train samples by the number of their rollout in the rollout dump (by their own number where they have none)."""
    note_missing(step, train, findings)
    found: dict[int, Sample] = {}
    for index, sample in enumerate(train["samples"]):
        position = int(index if sample.get("rollout_position") is None else sample["rollout_position"])
        if position in found or position < 0:
            findings.note("integrity", "train samples that name a rollout twice are left out", step=step,
                          rollout_position=position)  # fmt: skip
        else:
            found[position] = sample
    return found


def _row(position: int, place: str, sample: Sample, trained: Sample, findings: Findings) -> Row:
    tokens = integers(_either(sample, trained, "tokens", "tokens"), findings, "tokens", place)
    said = _either(trained, sample, "response_lengths", "response_length")
    length = 0 if said is None else int(said)
    if tokens is None or not 0 <= length <= len(tokens):
        raise BadInput(f"{place} says {length} response tokens and holds {0 if tokens is None else len(tokens)} tokens")
    row = Row(place=place, sequence=position, rank=trained.get("data_parallel_rank"))
    row.prompt_ids, row.token_ids = tokens[: len(tokens) - length], tokens[len(tokens) - length :]
    _masks(row, sample, trained, findings)
    _describe(row, sample, trained, findings)
    row.weight_version, row.token_weight_version = weight_versions(
        [str(v) for v in sample.get("weight_versions") or ()],
        _sampled(row, sample, findings),
        findings,
        place,
        row.extra,
    )
    return row


def _masks(row: Row, sample: Sample, trained: Sample, findings: Findings) -> None:
    """The loss mask, and log-probs with the zeros that fill tool tokens as missing."""
    mask = integers(_either(trained, sample, "loss_masks", "loss_mask"), findings, "loss_mask", row.place)
    row.mask = None if mask is None else mask != 0
    sampled = _sampled(row, sample, findings)
    said = _either(trained, sample, "rollout_log_probs", "rollout_log_probs")
    values = {"rollout_logprob": floats(said, findings, "rollout_log_probs", row.place)}
    values |= {ours: floats(trained.get(name), findings, name, row.place) for name, ours in _TRAINER.items()}
    for name, column in values.items():
        if column is not None and name.endswith("logprob") and len(column) == len(sampled):
            column = scored(column, sampled)
        setattr(row, name, column)


def _sampled(row: Row, sample: Sample, findings: Findings) -> Any:
    """Which response tokens the engine sampled: by the rollout's own mask, since the trainer may drop whole samples."""
    own = integers(sample.get("loss_mask"), findings, "loss_mask", row.place)
    mask = row.mask if own is None else own != 0
    return np.ones(len(row.token_ids), bool) if mask is None or len(mask) != len(row.token_ids) else mask


def _describe(row: Row, sample: Sample, trained: Sample, findings: Findings) -> None:
    """Texts, names and rewards."""
    row.prompt, row.completion = text(sample.get("prompt")), text(sample.get("response"))
    if isinstance(status := sample.get("status"), str):
        row.finish_reason = _FINISH.get(status, status)
    row.group_id = None if sample.get("group_index") is None else str(sample["group_index"])
    index = _either(sample, trained, "index", "sample_index")
    row.uid = None if index is None else str(index)
    reward = sample.get("reward")
    if isinstance(reward, dict):
        row.extra |= {f"reward/{k}": float(v) for k, v in reward.items() if isinstance(v, int | float)}
    else:
        row.reward = number(reward, findings, "reward", row.place)
    if trained.get("rewards") is not None:
        row.extra["trained_reward"] = number(np.asarray(trained["rewards"]).item(), findings, "rewards", row.place)


def _either(first: Sample, second: Sample, name: str, other: str) -> Any:
    """A field of the first sample, or of the second where the first lacks it."""
    value = first.get(name)
    return second.get(other) if value is None else value
