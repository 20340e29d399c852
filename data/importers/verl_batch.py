"""verl's rollout cache of the V1 trainer (skip.rollout_tq): .../STEP/INNER/tq_batch.pt with meta.json beside it.

A torch file of {"tensordict", "tags", "keys", "global_steps"}: one row a trajectory, columns as jagged nested tensors
without padding, log-prob i beside response token i. It is written right after sampling, so it holds no trainer
log-probs and no advantages. Of the weight versions only the first and the last of a trajectory are kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from timscope.data.errors import BadInput
from timscope.data.importers.base import ROW_FAULTS, Findings, Format, Part
from timscope.data.importers.columns import Row, parts
from timscope.data.importers.files import OpenFile, note_unread, note_unusable, open_dump
from timscope.data.importers.numbers import floats, integers
from timscope.data.importers.step_files import note_gaps
from timscope.data.importers.suspects import scored
from timscope.data.importers.tensordicts import TENSORDICT, TensorDict, rows_of
from timscope.data.importers.versions import note_mixed
from timscope.data.manifest import Framework

_NAME = "tq_batch.pt"
_DEPTH = 4  # folders between the dump_dir and the file: experiment, sizes, step, inner
_COLUMNS = {
    "rollout_log_probs": "rollout_logprob", "old_log_probs": "old_logprob", "ref_log_prob": "ref_logprob",
    "entropy": "entropy", "advantages": "token_advantage", "rollout_is_weights": "rollout_is_weight",
}  # fmt: skip
_OTHERS = ("prompts", "responses", "response_mask", "rm_scores", "num_turns")


@dataclass(frozen=True, order=True)
class _File:
    step: int
    inner: int  # mini-batch within a step
    path: Path


def _files(path: Path) -> list[_File]:
    if path.is_file():
        paths = [path] if path.name == _NAME else []
    else:
        paths = [p for depth in range(_DEPTH + 1) for p in path.glob("*/" * depth + _NAME)]
    return sorted(_file(p) for p in paths)


def _file(path: Path) -> _File:
    meta = _meta(path)
    inner, folder = (int(n) if n.isdecimal() else 0 for n in (path.parent.name, path.parent.parent.name))
    said = meta.get("global_steps")
    return _File(said if isinstance(said, int) else folder, inner, path)


def _meta(path: Path) -> dict[str, Any]:
    try:
        found = json.loads((path.parent / "meta.json").read_bytes())
    except (OSError, RecursionError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def detect(path: Path) -> bool:
    """Whether `path` is a tq_batch.pt or a folder with some, at most four folders down."""
    return bool(_files(path))


def read(path: Path, findings: Findings, facts: dict[str, Any]) -> Iterator[Part]:
    """See `Format.read`. A step is a global_steps; its inner mini-batches follow one another.

    Raises BadInput where `path` holds the caches of several jobs.
    """
    files = _files(path)
    if not files:
        raise BadInput(f"{path} holds no {_NAME}: give verl's skip.rollout_tq.dump_dir")
    if len({f.path.parent.parent.parent for f in files}) > 1:
        jobs = sorted({str(f.path.parent.parent.parent) for f in files})
        raise BadInput(f"{path} holds the caches of several jobs: import one of {', '.join(jobs[:5])}")
    facts["framework"] = Framework(name="verl")
    note_gaps((f.step for f in files), findings)
    for step, same in groupby(files, key=lambda f: f.step):
        first = 0
        for file in same:
            payload, opened = open_dump(file.path, findings, TENSORDICT)
            if payload is None or opened is None:
                continue
            keys = [str(k) for k in payload["keys"]]
            yield from _parts(step, first, keys, payload, opened, findings)
            first += len(keys)


def _parts(
    step: int, first: int, keys: list[str], payload: Mapping[str, Any], file: OpenFile, findings: Findings
) -> Iterator[Part]:
    if not isinstance(payload["tensordict"], TensorDict):
        raise BadInput(f"{file.path} holds no TensorDict: give verl's tq_batch.pt")
    said = _meta(file.path).get("num_trajectories", len(keys))
    if said != len(keys):
        findings.note("integrity", "files whose meta.json counts other trajectories", step=step, file=str(file.path),
                      meta=said, trajectories=len(keys))  # fmt: skip
    for part in parts(step, _rows(first, keys, payload, file, findings), findings):
        yield part
        file.forget()
    note_unread(file, findings=findings)


def _rows(
    first: int, keys: Sequence[str], payload: Mapping[str, Any], file: OpenFile, findings: Findings
) -> Iterator[Row]:
    fields, tags = payload["tensordict"].fields, list(payload["tags"])
    found = {name: rows_of(fields.get(name), len(keys)) for name in (*_OTHERS, *_COLUMNS)}
    for name in ("prompts", "responses"):
        if found[name] is None:
            raise BadInput(f"{file.path} has no {name}: it is no cache of verl's V1 trainer")
    columns = {name: values for name, values in found.items() if values is not None}
    for index, key in enumerate(keys):
        tag = tags[index] if index < len(tags) else {}
        if tag.get("is_padding"):
            findings.note("padding-rows", "trajectories that fill the batch are left out", key=key)
            continue
        place = f"{file.path.parent.name}/{file.path.name} {key}"
        try:
            row = _row({name: values[index] for name, values in columns.items()}, place, findings)
        except ROW_FAULTS as error:
            note_unusable(place, error, findings)
            continue
        row.sequence, row.uid, row.group_id = first + index, key, key.rsplit("_", 2)[0]
        low, high = tag.get("min_global_steps"), tag.get("max_global_steps")
        if low is not None and high is not None:
            if int(low) == int(high):
                row.weight_version = int(low)
            else:
                note_mixed(int(low), int(high), findings, place, row.extra)
        yield row


def _row(columns: Mapping[str, Any], place: str, findings: Findings) -> Row:
    row = Row(place=place)
    row.prompt_ids = integers(columns["prompts"], findings, "prompts", place)
    row.token_ids = integers(columns["responses"], findings, "responses", place)
    mask = integers(columns.get("response_mask"), findings, "response_mask", place)
    row.mask = None if mask is None else mask != 0
    for theirs, ours in _COLUMNS.items():
        values = floats(columns.get(theirs), findings, theirs, place)
        if values is not None and row.mask is not None and ours.endswith("logprob") and len(values) == len(row.mask):
            values = scored(values, row.mask)
        setattr(row, ours, values)
    if (scores := columns.get("rm_scores")) is not None:
        row.reward = float(np.asarray(scores, np.float64).sum())
    if (turns := columns.get("num_turns")) is not None:
        row.turns = int(np.asarray(turns).item())
    return row


FORMAT = Format("verl-batch", "verl rollout cache (tq_batch.pt)", "T2", detect, read)
