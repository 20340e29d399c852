"""Names of the files in a run, and the COMPLETE markers that say which of them count.

A marker is written per rank after the last part of a step and lists that step's parts with rows and bytes. Readers
read only what a marker lists, so a half-written step, an orphan of a crash or a part that was cut short never mixes
into a result.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from timscope.data.errors import BadInput
from timscope.data.storage import Storage

MANIFEST = "manifest.json"
CERTIFICATE = "certificate.json"
_STEP = re.compile(r"step=(\d+)$")
_MARKER = re.compile(r"COMPLETE\.rank=(\d+)$")
_REPLAY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}$")


def step_dir(table: str, step: int) -> str:
    """tokens/step=000012"""
    return f"{table}/step={step:06d}"


def part_path(table: str, step: int, rank: int, number: int) -> str:
    """tokens/step=000012/rank=0-000.parquet"""
    return f"{step_dir(table, step)}/rank={rank}-{number:03d}.parquet"


def marker_path(step: int, rank: int, prefix: str = "") -> str:
    """steps/step=000012/COMPLETE.rank=0"""
    return f"{prefix}{step_dir('steps', step)}/COMPLETE.rank={rank}"


def replay_dir(name: str) -> str:
    """replays/NAME, after checking that NAME is one plain path element."""
    if not _REPLAY_NAME.match(name):
        raise BadInput(f"{name!r} cannot name a replay: use letters, digits, '.', '_' and '-'")
    return f"replays/{name}"


@dataclass
class Marker:
    """What one rank wrote of one step."""

    step: int
    rank: int
    parts: list[tuple[str, str, int, int]] = field(default_factory=list)  # table, path, rows, bytes
    dropped: int = 0

    def to_bytes(self) -> bytes:
        """The marker file."""
        parts = [{"table": t, "path": p, "rows": r, "bytes": b} for t, p, r, b in self.parts]
        return json.dumps({"step": self.step, "rank": self.rank, "dropped": self.dropped, "parts": parts}).encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Marker:
        """Parse a marker; BadInput where it is not one."""
        try:
            raw = json.loads(data)
            parts = [(str(p["table"]), str(p["path"]), int(p["rows"]), int(p["bytes"])) for p in raw["parts"]]
            return cls(int(raw["step"]), int(raw["rank"]), parts, int(raw.get("dropped", 0)))
        except (ValueError, KeyError, TypeError) as error:
            raise BadInput(f"{where} is not a timscope marker ({error!r}): delete that step's folders") from error


def markers(storage: Storage, prefix: str = "") -> dict[int, dict[int, Marker]]:
    """All markers below `prefix`, by step and rank."""
    found: dict[int, dict[int, Marker]] = {}
    for folder in storage.names(f"{prefix}steps"):
        if not (match := _STEP.match(folder)):
            continue
        for name in storage.names(f"{prefix}steps/{folder}"):
            if mark := _MARKER.match(name):
                path = f"{prefix}steps/{folder}/{name}"
                marker = Marker.from_bytes(storage.read(path), path)
                found.setdefault(int(match[1]), {})[int(mark[1])] = marker
    return found


def damage(storage: Storage, marker: Marker) -> str | None:
    """What is wrong with a marked step's parts: the first missing or truncated one, or None."""
    for _table, path, _rows, size in marker.parts:
        there = storage.size(path)
        if there is None:
            return f"{path} is missing"
        if there != size:
            return f"{path} is truncated or altered ({there:,} of {size:,} bytes)"
    return None
