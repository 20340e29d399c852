"""ROLL's logging board: `data_{date}_{time}_{ms}.jsonl`, one file a step and domain, one line a sample.

Log-probs run from the first response token to the end of the padded row, beside `new_response_mask`; after its last 1
comes padding. `logprobs` are the trainer's old log-probs. ROLL computes them twice: `log_probs2` is the same quantity
again, so its distance is a measured noise floor, noted as "trainer-not-deterministic" where it is not 0. There are no
rollout log-probs, no token ids and no prompt length: positions count from the first response token.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from timscope.data.errors import BadInput
from timscope.data.importers.base import Findings, Part
from timscope.data.importers.columns import MAX_INT, Floats, Row, parts
from timscope.data.importers.json_values import flag_list, float_list, text
from timscope.data.importers.jsonl import Line, lines, usable
from timscope.data.importers.numbers import number
from timscope.data.importers.without_ids import hide_placeholders, placeholder_ids

# The folder's name is put before it without a slash where the setting lacks one.
_FILE = re.compile(r".*data_\d{8}_\d{6}_\d{3}\.jsonl(?:\.gz)?")
_COLUMNS = {"logprobs": "old_logprob", "ref_logprobs": "ref_logprob", "old_log_probs2_entropy": "entropy"}


@dataclass
class _Twice:
    """How far the trainer's two passes over the same tokens are apart, in nats."""

    tokens: int = 0
    differing: int = 0
    total: float = 0.0
    largest: float = 0.0

    def add(self, first: Floats | None, second: Floats | None) -> None:
        if first is None or second is None:
            return
        gap = np.abs(np.ma.compressed(np.ma.asarray(first) - np.ma.asarray(second)))
        gap = gap[np.isfinite(gap)]
        self.tokens += gap.size
        self.differing += int(np.count_nonzero(gap))
        self.total += float(gap.sum())
        self.largest = max(self.largest, float(gap.max(initial=0.0)))


def board_files(path: Path) -> list[Path]:
    """The board's files in a folder, or the file itself, in the order they were written; never raises."""
    try:
        found = [path] if path.is_file() else list(path.iterdir())
    except OSError:
        return []
    return sorted(p for p in found if _FILE.fullmatch(p.name))


def read_board(files: list[Path], findings: Findings) -> Iterator[Part]:
    """All steps in order, every file of a step together."""
    findings.note("relative-positions", "the dump has no prompt length: positions count from the first response token")
    twice = _Twice()
    by_step: dict[int, list[Path]] = {}
    for file in files:
        if (step := _step(file)) is None:
            findings.note("integrity", "files without a readable line are left out", file=file.name)
        else:
            by_step.setdefault(step, []).append(file)
    yield from _parts(by_step, twice, findings)
    if twice.differing:
        findings.note(
            "trainer-not-deterministic", "two passes of the trainer over the same tokens differ: its own noise floor",
            tokens=twice.tokens, differing=twice.differing, mean_abs=twice.total / twice.tokens, max_abs=twice.largest,
        )  # fmt: skip


def _step(file: Path) -> int | None:
    """The step of a file: all of its lines have the same one. Broken lines are noted when the file is read."""
    for line in lines(file, Findings()):
        if isinstance(step := line.data.get("step"), int) and 0 <= step <= MAX_INT:
            return step
    return None


def _parts(by_step: dict[int, list[Path]], twice: _Twice, findings: Findings) -> Iterator[Part]:
    for step in sorted(by_step):
        yield from map(hide_placeholders, parts(step, _rows(step, by_step[step], twice, findings), findings))


def _rows(step: int, files: list[Path], twice: _Twice, findings: Findings) -> Iterator[Row]:
    base = 0
    for file in files:
        for row in usable(lines(file, findings), lambda line: _row(line, step, twice, findings), findings, base):
            yield row
            base = row.sequence if row.sequence is not None else base
        base += 1


def _row(line: Line, step: int, twice: _Twice, findings: Findings) -> Row:
    data, place = line.data, line.place
    if data.get("step") != step:
        raise BadInput(f"{place}: its step is {data.get('step')!r} where the file's first line has {step}")
    in_loss = flag_list(data.get("new_response_mask"), findings, "new_response_mask", place)
    length = int(np.flatnonzero(in_loss)[-1]) + 1 if in_loss.any() else 0
    row = Row(
        prompt=text(data.get("prompt")),
        completion=text(data.get("response")),
        reward=number(data.get("reward"), findings, "reward", place),
        token_ids=placeholder_ids(length),
        mask=in_loss[:length],
        turns=int(np.count_nonzero(np.diff(in_loss.astype(np.int8), prepend=0) == 1)),
    )
    for name, column in _COLUMNS.items():
        setattr(row, column, _column(data, name, length, findings, place))
    twice.add(row.old_logprob, _column(data, "log_probs2", length, findings, place))
    return row


def _column(data: dict[str, Any], name: str, length: int, findings: Findings, place: str) -> Floats | None:
    values = float_list(data.get(name), findings, name, place)
    if values is not None and len(values) < length:
        raise BadInput(f"{place}: {name} has {len(values)} values for {length} response tokens")
    return None if values is None else values[:length]
