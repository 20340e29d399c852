"""AReaL's rollout dump: `rollout/{version}/{task_id}.jsonl`, one line a sample, text and weight versions (T1).

The folder's number is the weights version at which the task ended; it stands for the step, because the dump does not
say in which step a sample was trained on. `version_rle` lists [version, generated tokens] in order: the smallest and
largest become `weight_version_min` and `weight_version_max`, and `weight_version` where they are one. A task is one
prompt, so its id is the group. `num_tokens` counts what follows the prompt, context turns included.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from timscope.data.errors import BadInput
from timscope.data.importers.base import Findings, Format, Part
from timscope.data.importers.columns import Row, parts
from timscope.data.importers.json_values import text
from timscope.data.importers.jsonl import Line, first_object, lines, usable
from timscope.data.importers.numbers import number
from timscope.data.importers.step_files import numbered
from timscope.data.manifest import Framework

_VERSION = re.compile(r"(\d+)")
_TASK = re.compile(r"(\d+)\.jsonl(?:\.gz)?")
_KEYS = {"task_id", "version_rle", "prompt", "completion"}


def _folders(path: Path) -> list[tuple[int, Path]]:
    """(version, folder) of a rollout folder, of the log folder around it, or of one version's folder."""
    if _VERSION.fullmatch(path.name) and numbered(path, _TASK):
        return [(int(path.name), path)]
    return numbered(path / "rollout" if (path / "rollout").is_dir() else path, _VERSION)


def detect(path: Path) -> bool:
    """The rollout folder, the log folder around it, or one version's folder."""
    for _, folder in _folders(path):
        for _, file in numbered(folder, _TASK)[:1]:
            return first_object(file).keys() >= _KEYS
    return False


def read(path: Path, findings: Findings, facts: dict[str, Any]) -> Iterator[Part]:
    """All versions in order, one step each; see `Format.read`."""
    folders = _folders(path)
    if not folders:
        raise BadInput(f"{path} holds no VERSION/TASK.jsonl: give the rollout folder of the log path")
    facts["framework"] = Framework(name="areal")
    for version, folder in folders:
        yield from parts(version, _rows(folder, findings), findings)


def _rows(folder: Path, findings: Findings) -> Iterator[Row]:
    base = 0
    for _, file in numbered(folder, _TASK):
        for row in usable(lines(file, findings), lambda line: _row(line, findings), findings, base):
            yield row
            base = row.sequence if row.sequence is not None else base
        base += 1


def _row(line: Line, findings: Findings) -> Row:
    data, place = line.data, line.place
    if not data.keys() >= _KEYS:
        raise BadInput(f"{place}: a line without {', '.join(sorted(_KEYS - data.keys()))}")
    first, last = _versions(data["version_rle"], place)
    total, prompt = (number(data.get(k), findings, k, place) for k in ("seqlen", "prompt_len"))
    row = Row(
        uid=f"{data['task_id']}_{data.get('sample_idx', line.number - 1)}",
        group_id=str(data["task_id"]),
        prompt=text(data["prompt"]),
        completion=text(data["completion"]),
        reward=number(data.get("reward"), findings, "reward", place),
        num_tokens=None if total is None or prompt is None else int(total - prompt),
        weight_version=first if first == last else None,
        extra={"weight_version_min": first, "weight_version_max": last},
    )
    segments = data.get("segments") or ()
    row.turns = sum(s.get("role") == "gen" for s in segments) if segments else 1
    if "original_reward" in data:
        row.extra["original_reward"] = number(data["original_reward"], findings, "original_reward", place)
    return row


def _versions(rle: Any, place: str) -> tuple[int | None, int | None]:
    """The smallest and largest version; AReaL writes -1 where it is unknown, which is missing here."""
    try:
        known = [int(version) for version, _ in rle if int(version) >= 0]
    except (TypeError, ValueError) as error:
        raise BadInput(f"{place}: version_rle is no list of [version, tokens]") from error
    return (min(known), max(known)) if known else (None, None)


FORMAT = Format("areal", "AReaL rollout dump", "T1", detect, read)
