"""verl's `rollout_data_dir`: `{step}.jsonl`, one line a sample, text and score alone (T1).

`input` and `output` are decoded without special tokens, so token ids cannot be had back: there are no token rows.
`score` is the reward. The V1 trainer adds `uid` = "{prompt}_{session}_{index}", whose first part is the group; the
legacy one adds the reward function's extras, and those that are numbers come along under their own names. A file of
verl's file logger in the same folder gives the `steps` table.
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
from timscope.data.importers.metrics_jsonl import VERL, MetricsFile, is_verl_log
from timscope.data.importers.numbers import number
from timscope.data.importers.step_files import note_gaps, numbered
from timscope.data.importers.text_rows import own_numbers
from timscope.data.manifest import Framework

_FILE = re.compile(r"(\d+)\.jsonl(?:\.gz)?")
_UID = re.compile(r"(.+)_\d+_\d+")
_OWN = ("input", "output", "gts", "score", "step", "uid", "request_id")


def _files(path: Path) -> list[tuple[int, Path]]:
    if path.is_file():
        match = _FILE.fullmatch(path.name)
        return [(int(match[1]), path)] if match else []
    return numbered(path, _FILE)


def detect(path: Path) -> bool:
    """{step}.jsonl, or a folder of such files, whose lines have input, output and score."""
    files = _files(path)
    return bool(files) and {"input", "output", "score"} <= first_object(files[0][1]).keys()


def read(path: Path, findings: Findings, facts: dict[str, Any]) -> Iterator[Part]:
    """All steps in order; see `Format.read`."""
    files = dict(_files(path))
    if not files:
        raise BadInput(f"{path} holds no STEP.jsonl: give the folder that trainer.rollout_data_dir named")
    note_gaps(files, findings)
    facts["framework"] = Framework(name="verl")
    metrics = _metrics(path, findings)
    for step in sorted({*files, *(metrics.steps if metrics else ())}):
        if metrics is not None and (part := metrics.part(step)) is not None:
            yield part
        if step in files:
            yield from parts(step, _rows(step, files[step], findings), findings)


def _metrics(path: Path, findings: Findings) -> MetricsFile | None:
    if not path.is_dir():
        return None
    logs = [p for p in sorted(path.glob("*.jsonl")) if not _FILE.fullmatch(p.name) and is_verl_log(p)]
    if len(logs) > 1:
        names = [p.name for p in logs]
        findings.note("ambiguous-metrics", "several metrics files lie beside the dump: none is used", files=names)
    return MetricsFile(logs[0], findings, VERL) if len(logs) == 1 else None


def _rows(step: int, file: Path, findings: Findings) -> Iterator[Row]:
    return usable(lines(file, findings), lambda line: _row(line, step, findings), findings)


def _row(line: Line, step: int, findings: Findings) -> Row:
    data, place = line.data, line.place
    if "output" not in data:
        raise BadInput(f"{place}: a line without output")
    if data.get("step", step) != step:
        findings.note(
            "step-differs", "lines name another step than their file: the file's counts", place=place, step=data["step"]
        )
    uid = data.get("uid", data.get("request_id"))
    match = _UID.fullmatch(uid) if isinstance(uid, str) and "uid" in data else None
    return Row(
        uid=None if uid is None else text(uid),
        group_id=match[1] if match else None,
        prompt=text(data.get("input")),
        completion=text(data["output"]),
        reward=number(data.get("score"), findings, "score", place),
        extra=own_numbers(data, _OWN),
    )


FORMAT = Format("verl-jsonl", "verl rollout_data_dir", "T1", detect, read)
