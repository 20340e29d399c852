"""slime's --dump-details folder: rollout_data/{id}.pt (what the engine made) and train_data/{id}.pt (what the trainer
made of it), format_version 2, joined by `rollout_position`.

Log-prob i belongs to response token i, so to tokens[-response_length + i]. A step is a rollout id. Where slime reuses
the loss's own forward there is no separate old pass, and `log_probs` is the in-loss value; the dump does not say which,
so it is imported as old_logprob and the manifest says this.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from timscope.data.errors import BadInput
from timscope.data.importers.base import Findings, Format, Part
from timscope.data.importers.columns import parts
from timscope.data.importers.files import note_unread, open_dump
from timscope.data.importers.slime_layout import trained_ranks
from timscope.data.importers.slime_rows import rows
from timscope.data.importers.step_files import note_gaps, note_missing_ranks, numbered
from timscope.data.manifest import Framework, LogprobMode

_NAME = re.compile(r"(\d+)\.pt")
_EVAL = re.compile(r"eval_(\d+)\.pt")


def _folder(path: Path) -> tuple[list[tuple[int, Path]], list[tuple[int, Path]]]:
    """Rollout files and train files by id, of the dump folder, of one of its two parts, or one file of a part."""
    if (match := _NAME.fullmatch(path.name)) and path.is_file():
        only, kind = [(int(match[1]), path)], path.absolute().parent.name
        return (only if kind == "rollout_data" else [], only if kind == "train_data" else [])
    if path.name in ("rollout_data", "train_data"):
        own = numbered(path, _NAME)
        return (own, []) if path.name == "rollout_data" else ([], own)
    return numbered(path / "rollout_data", _NAME), numbered(path / "train_data", _NAME)


def detect(path: Path) -> bool:
    """Whether `path` is a --dump-details folder, its rollout_data or train_data, or a file of one of these."""
    return any(_folder(path))


def read(path: Path, findings: Findings, facts: dict[str, Any]) -> Iterator[Part]:
    """See `Format.read`. Raises BadInput for train files of the older layout, one a rank and without format_version."""
    rollout_files, train_files = (dict(found) for found in _folder(path))
    if not rollout_files and not train_files:
        raise BadInput(
            f"{path} holds no rollout_data/ID.pt and no train_data/ID.pt: give slime's --dump-details folder"
        )
    facts["framework"] = Framework(name="slime")
    facts["rollout"] = {"name": "sglang"}
    note = "slime's log_probs: of the pass before the update, or of the loss itself where slime reuses it"
    facts["logprobs"] = {"old_logprob": LogprobMode.model_validate({"note": note})} if train_files else {}
    _note_beside(path, rollout_files, train_files, findings)
    ranks: dict[int, list[int]] = {}
    for step in sorted({*rollout_files, *train_files}):
        yield from _step(step, rollout_files.get(step), train_files.get(step), findings, ranks)
    note_missing_ranks(ranks, findings)


def _note_beside(path: Path, rollout: dict[int, Path], train: dict[int, Path], findings: Findings) -> None:
    """Files that are left out and files that are missing."""
    note_gaps({*rollout, *train}, findings)
    if evals := numbered(path / "rollout_data", _EVAL):
        findings.note("not-imported", "evaluation rollouts are left out", len(evals), first=evals[0][1].name)
    if rollout and train:
        for step in sorted({*rollout} ^ {*train}):
            lacks = "train_data" if step in rollout else "rollout_data"
            findings.note("missing-file", f"steps without their {lacks} file", step=step)


def _step(
    step: int, rollout_file: Path | None, train_file: Path | None, findings: Findings, ranks: dict[int, list[int]]
) -> Iterator[Part]:
    rollout, opened = open_dump(rollout_file, findings)
    train, opened_train = open_dump(train_file, findings)
    if train is not None and train.get("format_version") != 2:
        raise BadInput(
            f"{train_file} has no format_version 2: older slime wrote one file a rank, whose samples cannot be joined. "
            "Import the folder rollout_data alone, or dump again with a newer slime"
        )
    if rollout is None and train is None:
        return
    if train is not None:
        ranks[step] = trained_ranks(train)
    for part in parts(step, rows(step, rollout, train, findings), findings):
        yield part
        for file in (opened, opened_train):
            if file is not None:
                file.forget()
    note_unread(opened, opened_train, findings=findings)


FORMAT = Format("slime", "slime --dump-details (rollout_data and train_data)", "T4", detect, read)
