"""SkyRL's dumped training batches: dumped_data/global_step_{N}_training_input.pkl (trainer.dump_data_batch=true).

Everything is padded on the left. `sequences` (B, T) ends with the response; the response columns (B, R) hold in column
i the log-prob of the i-th of the last R tokens, so both are right-aligned. Rows beyond B - pad_size are copies of row 0
that fill the last batch: they are left out. Rewards and uids are taken out by SkyRL before it writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from timscope.data.errors import BadInput
from timscope.data.importers.base import Findings, Format, Part
from timscope.data.importers.columns import Row, parts
from timscope.data.importers.files import OpenFile, note_unread, open_dump
from timscope.data.importers.skyrl_batch import read_batch
from timscope.data.importers.step_files import note_gaps, numbered
from timscope.data.importers.suspects import scored
from timscope.data.manifest import Framework

_NAME = re.compile(r"global_step_(\d+)_training_input\.pkl")
_COLUMNS = {
    "rollout_logprobs": "rollout_logprob", "action_log_probs": "old_logprob", "base_action_log_probs": "ref_logprob",
    "advantages": "token_advantage",
}  # fmt: skip
_NEEDED = ("sequences", "attention_mask", "loss_mask", "response_mask", *_COLUMNS)


def _files(path: Path) -> list[tuple[int, Path]]:
    if path.is_file():
        match = _NAME.fullmatch(path.name)
        return [(int(match[1]), path)] if match else []
    return numbered(path, _NAME) or numbered(path / "dumped_data", _NAME)


def detect(path: Path) -> bool:
    """Whether `path` is SkyRL's export folder, its dumped_data, or one dumped batch."""
    return bool(_files(path))


def read(path: Path, findings: Findings, facts: dict[str, Any]) -> Iterator[Part]:
    """See `Format.read`. A step is a global_step."""
    files = _files(path)
    if not files:
        raise BadInput(f"{path} holds no global_step_N_training_input.pkl: give SkyRL's dumped_data folder")
    facts["framework"] = Framework(name="skyrl")
    note_gaps((step for step, _ in files), findings)
    for step, file in files:
        batch, opened = open_dump(file, findings, load=read_batch)
        if batch is None or opened is None:
            continue
        for part in parts(step, _rows(step, batch, opened, findings), findings):
            yield part
            opened.forget()
        note_unread(opened, findings=findings)


def _rows(step: int, batch: Mapping[str, Any], file: OpenFile, findings: Findings) -> Iterator[Row]:
    columns, meta = batch["columns"], batch["metadata"]
    for name in ("sequences", "attention_mask", "loss_mask"):
        if columns.get(name) is None:
            raise BadInput(f"{file.path} has no {name}: it is not a SkyRL training batch")
    total = len(columns["sequences"])
    count = total - int(meta.get("pad_size") or 0)
    _note_padding(step, total, count, columns, findings)
    groups, minis = (_owners(meta.get(f"policy_{kind}_boundaries"), count) for kind in ("prompt", "mini_batch"))
    present = {name: np.asarray(columns[name]) for name in _NEEDED if columns.get(name) is not None}
    for index in range(count):
        row = _row({name: values[index] for name, values in present.items()}, f"{file.path.name} row {index}")
        row.group_id = None if groups is None else str(groups[index])
        if minis is not None:
            row.extra["mini_batch"] = float(minis[index])
        yield row


def _row(columns: Mapping[str, NDArray[Any]], place: str) -> Row:
    """One row (T,), (R,) of the batch. Where there is no response_mask the response begins at the first loss token."""
    real, width = columns["attention_mask"] != 0, len(columns["loss_mask"])
    ids = columns["sequences"][real]
    marked = columns.get("response_mask", columns["loss_mask"]) != 0
    length = int(marked.sum()) if "response_mask" in columns else width - int(np.argmax(marked)) if marked.any() else 0
    row = Row(place=place, prompt_ids=ids[: len(ids) - length], token_ids=ids[len(ids) - length :])
    row.pad_left, row.pad_right = int(len(real) - real.sum()), 0
    last = slice(width - length, width)
    row.mask = columns["loss_mask"][last] != 0
    for theirs, ours in _COLUMNS.items():
        if theirs in columns:
            values = columns[theirs][last].astype(np.float64)
            setattr(row, ours, scored(values, row.mask) if ours == "rollout_logprob" else values)
    return row


def _owners(boundaries: Any, count: int) -> list[int] | None:
    """Which (start, end) interval each row is in; None where the batch does not say."""
    if not boundaries:
        return None
    owners = [-1] * count
    for number, (start, end) in enumerate(boundaries):
        owners[int(start) : int(end)] = [number] * (min(int(end), count) - min(int(start), count))
    return owners


def _note_padding(step: int, total: int, count: int, columns: Mapping[str, Any], findings: Findings) -> None:
    """Rows that fill the batch are copies of row 0; what is no copy is no filling, and that is said."""
    if count == total:
        return
    if not 0 <= count <= total:
        raise BadInput(
            f"step {step}: pad_size says {total - count} of {total} rows: the file is damaged, copy it again"
        )
    findings.note("padding-rows", "rows that fill the batch, copies of row 0, are left out", total - count, step=step)
    ids = np.asarray(columns["sequences"])
    if different := int((ids[count:] != ids[0]).any(axis=1).sum()):
        findings.note("integrity", "rows that should be copies of row 0 are not; left out", different, step=step)


FORMAT = Format("skyrl", "SkyRL dumped_data", "T3", detect, read)
