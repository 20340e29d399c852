"""Metrics files of one JSON object a line: verl's file logger ({"step", "data": {...}}) and prime-rl's metrics.jsonl.

A run's `steps` table takes every metric under the framework's own name; the few that the schema knows are filled in
too. The file alone is a run of metrics without tokens (T0).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from timscope.data.errors import BadInput
from timscope.data.importers.base import Findings, Format, Part
from timscope.data.importers.columns import MAX_INT, step_part
from timscope.data.importers.jsonl import Line, first_object, lines
from timscope.data.importers.numbers import number
from timscope.data.manifest import Framework

# Column of `steps`: the metrics that hold it, the first one there counts. Gradient norms are those before clipping.
VERL = {
    "loss": ("actor/loss",),
    "reward": ("critic/rewards/mean", "critic/score/mean"),
    "grad_norm": ("actor/grad_norm",),
    "learning_rate": ("actor/lr",),
    "entropy": ("actor/entropy",),
    "time_s": ("timing_s/step", "perf/time_per_step"),
}
# Its "time/step" is written by two processes under one name, so `time_s` stays NULL.
PRIME_RL = {
    "loss": ("loss/mean",),
    "grad_norm": ("optim/grad_norm",),
    "learning_rate": ("optim/lr",),
    "entropy": ("entropy/all/mean",),
}
_CLOCKS = ("time", "timing")


class MetricsFile:
    """A metrics file, indexed by step: only line offsets are kept in memory."""

    def __init__(self, path: Path, findings: Findings, known: Mapping[str, tuple[str, ...]]) -> None:
        self._path, self._findings, self._known = path, findings, known
        self._offsets: dict[int, list[tuple[int, int]]] = {}  # step: (byte offset, line number)
        for line in lines(path, findings):
            step = line.data.get("step")
            if isinstance(step, int) and not isinstance(step, bool) and 0 <= step <= MAX_INT:
                self._offsets.setdefault(step, []).append((line.offset, line.number))
            else:
                findings.note("integrity", "metric lines without a step are left out", place=line.place)

    @property
    def steps(self) -> list[int]:
        """Steps with at least one line, ascending."""
        return sorted(self._offsets)

    def part(self, step: int) -> Part | None:
        """The `steps` row of a step, None where the file has no line of it. Of repeated metrics the last counts."""
        merged: dict[str, float | None] = {}
        for offset, number_of_line in self._offsets.get(step, []):
            line = replace(next(lines(self._path, self._findings, offset)), number=number_of_line)
            for name, value in _numbers(line, self._findings).items():
                old = merged.get(name, value)
                if old != value and not (old != old and value != value) and not name.startswith(_CLOCKS):
                    self._findings.note(
                        "metrics-repeated", "a step's metric was logged again with another value: the last one counts",
                        step=step, metric=name, first=str(old), last=str(value),
                    )  # fmt: skip
                merged[name] = value
        if not merged:
            return None
        for column, names in self._known.items():
            found = [merged[n] for n in names if merged.get(n) is not None]
            if found and column not in merged:
                merged[column] = found[0]
        return step_part(step, merged)


def _numbers(line: Line, findings: Findings) -> dict[str, float | None]:
    """The line's metrics: numbers, and text that spells one."""
    data = line.data["data"] if isinstance(line.data.get("data"), dict) else line.data
    found: dict[str, float | None] = {}
    for name, value in data.items():
        if name == "step" or isinstance(value, list | dict):
            continue
        if isinstance(value, str) and not _spells_number(value):
            continue
        try:
            found[name] = number(value, findings, "metrics", line.place)
        except BadInput as error:
            findings.note("integrity", "metrics that are no numbers are left out", metric=name, error=str(error))
    return found


def _spells_number(value: str) -> bool:
    try:
        return not math.isnan(float(value)) or value.strip().lower() == "nan"
    except ValueError:
        return False


def is_verl_log(path: Path) -> bool:
    """Whether the file's first line is one of verl's file logger."""
    first = first_object(path)
    return path.is_file() and isinstance(first.get("data"), dict) and "step" in first


def detect(path: Path) -> bool:
    """A verl file-logger file, or a file named metrics.jsonl with a step in each line."""
    if not path.is_file() or path.suffix != ".jsonl":
        return False
    return is_verl_log(path) or (path.name == "metrics.jsonl" and "step" in first_object(path))


def read(path: Path, findings: Findings, facts: dict[str, Any]) -> Iterator[Part]:
    """All steps in order; see `Format.read`."""
    verl = is_verl_log(path)
    facts["framework"] = Framework(name="verl" if verl else "prime-rl")
    metrics = MetricsFile(path, findings, VERL if verl else PRIME_RL)
    for step in metrics.steps:
        if (part := metrics.part(step)) is not None:
            yield part


FORMAT = Format("metrics-jsonl", "metrics files of verl and prime-rl", "T0", detect, read)
