"""Reads a dump through a format and lays the parts out as plain rows, to be compared with what a test wrote."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from timscope.data import open_run
from timscope.data.importers.base import Findings, Format, Part
from timscope.data.importers.convert import import_dump
from timscope.data.importers.suspects import watched
from timscope.data.reader import Run

TOKEN_COLUMNS = (
    "token_id", "mask", "rollout_logprob", "old_logprob", "loss_logprob", "ref_logprob", "entropy",
    "rollout_is_weight", "advantage", "weight_version",
)  # fmt: skip


def plain(values: Any) -> list[Any]:
    """A column as a list with None for NULL."""
    if isinstance(values, np.ma.MaskedArray):
        return [None if m else v for v, m in zip(values.data.tolist(), np.ma.getmaskarray(values), strict=True)]
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def rows(part: Part, table: str) -> list[dict[str, Any]]:
    """The rows of one table of a part."""
    columns = {name: plain(values) for name, values in part.tables.get(table, {}).items()}
    if not columns:
        return []
    length = len(next(iter(columns.values())))
    return [{"step": part.step, **{name: values[i] for name, values in columns.items()}} for i in range(length)]


@dataclass
class Read:
    """What a format made of a dump."""

    parts: list[Part]
    findings: Findings
    facts: dict[str, Any] = field(default_factory=dict)

    def table(self, name: str) -> list[dict[str, Any]]:
        return [row for part in self.parts for row in rows(part, name)]

    def tokens(self) -> dict[tuple[int, int, int], dict[str, Any]]:
        """Token rows by (step, sequence, position); every token column there, None where NULL."""
        found = {}
        for row in self.table("tokens"):
            key = (row["step"], int(row["sequence"]), int(row["position"]))
            assert key not in found
            found[key] = {name: row.get(name) for name in TOKEN_COLUMNS}
        return found

    def sequences(self) -> dict[tuple[int, int], dict[str, Any]]:
        return {(row["step"], int(row["sequence"])): row for row in self.table("sequences")}

    @property
    def kinds(self) -> dict[str, int]:
        """Findings by kind, with their counts."""
        counts: dict[str, int] = {}
        for finding in self.findings.listed():
            counts[finding.kind] = counts.get(finding.kind, 0) + finding.count
        return counts

    def evidence(self, kind: str) -> dict[str, Any]:
        return next(f.evidence for f in self.findings.listed() if f.kind == kind)


def read(source: Format, path: Path) -> Read:
    """All parts of a dump as the importer takes them; checks detection, and steps in order, each in one piece."""
    assert source.detect(path)
    findings, facts = Findings(), {}
    seen = Findings()
    parts = list(watched(source.read(path, findings, facts), seen))
    noted = {kind for kind, _ in findings.found}
    findings.found |= {key: found for key, found in seen.found.items() if key[0] not in noted}
    steps = [part.step for part in parts]
    assert steps == sorted(steps)
    assert "framework" in facts
    return Read(parts, findings, facts)


def through_a_run(path: Path, run: Path) -> Run:
    """The dump imported, its format found by itself, and the run opened."""
    import_dump(path, run)
    return open_run(run)


def same(a: Any, b: Any) -> bool:
    """Equal as float32, NaN equal to NaN, None only to None."""
    if a is None or b is None:
        return a is b
    if isinstance(a, float) or isinstance(b, float):
        x, y = np.float32(a), np.float32(b)
        return bool(x == y) or bool(np.isnan(x) and np.isnan(y))
    return bool(a == b)


def assert_rows(got: dict[Any, dict[str, Any]], want: dict[Any, dict[str, Any]]) -> None:
    """Same keys; and every column that `want` names is equal."""
    assert got.keys() == want.keys()
    for key, columns in want.items():
        for name, value in columns.items():
            assert same(got[key].get(name), value), (key, name, got[key].get(name), value)
