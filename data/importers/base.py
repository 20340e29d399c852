"""What an importer is: how to recognise a dump, and how to read it step by step without holding all of it.

An importer turns a dump into the run's own columns (data/schema.py): each log-prob beside the token it scores, absolute
positions, NULL where nothing was measured. What looks wrong is noted in `Findings` and left as it was found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from timscope.data.manifest import ImportFinding

# What a sample of the wrong types or sizes raises: it alone is left out, whatever is wrong with it.
ROW_FAULTS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)

Tier = Literal["T0", "T1", "T2", "T3", "T4"]

# Rows of one part. A step larger than this is written in several parts, so that memory stays bounded.
PART_TOKENS = 1_000_000


@dataclass
class Part:
    """Some sequences of one step: columns by table, as `RunWriter.put` takes them (`sequence` numbers unique in the
    step)."""

    step: int
    tables: dict[str, dict[str, Any]]


@dataclass
class Findings:
    """What was seen in the dump, one entry a kind and place; repeated ones are counted, the first evidence is kept."""

    found: dict[tuple[str, str], ImportFinding] = field(default_factory=dict)

    def note(self, kind: str, detail: str, count: int = 1, **evidence: Any) -> None:
        """Remember a finding. `kind`: a slug such as "truncated-dump"; `detail`: one line without varying numbers."""
        seen = self.found.get((kind, detail))
        if seen is None:
            plain = {name: _plain(value) for name, value in evidence.items()}
            self.found[kind, detail] = ImportFinding(kind=kind, detail=_plain(detail), count=count, evidence=plain)
        else:
            seen.count += count

    def listed(self) -> list[ImportFinding]:
        """All findings in the order they were first seen."""
        return list(self.found.values())


def _plain(value: Any, depth: int = 0) -> Any:
    """What the manifest can hold of a dump's value: one line of UTF-8, nothing nested deeply."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple | dict) and depth < 4:
        if isinstance(value, dict):
            return {_plain(str(k)): _plain(v, depth + 1) for k, v in value.items()}
        return [_plain(v, depth + 1) for v in value]
    if not isinstance(value, str):
        return type(value).__name__
    return " ".join(value.encode("utf-8", "backslashreplace").decode("utf-8").splitlines())


@dataclass(frozen=True)
class Format:
    """One framework's dump.

    `detect(path)`: whether this file or folder is such a dump; cheap (names and at most the first line of one file) and
    never raises. `read(path, findings, facts)`: yields the parts, steps in ascending order, all parts of a step
    together; `facts` is a dict of top-level manifest fields that it may fill until it is exhausted (framework,
    sampling, logprobs, algorithm, ...). Raises BadInput for a dump that cannot be read at all.
    """

    name: str
    title: str
    tier: Tier
    detect: Callable[[Path], bool]
    read: Callable[[Path, Findings, dict[str, Any]], Iterator[Part]]
