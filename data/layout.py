"""Names of the files in a run, and the COMPLETE markers that say which of them count.

A marker is written per rank after the last part of a step and lists that step's parts with rows and bytes. Readers
read only what a marker lists, so a half-written step, an orphan of a crash or a part that was cut short never mixes
into a result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
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
    dropped: int = 0  # parts
    dropped_tokens: int = 0
    world_size: int | None = None  # of the job that wrote the step: a resumed job may have another

    def to_bytes(self) -> bytes:
        """The marker file."""
        fields = ("step", "rank", "world_size", "dropped", "dropped_tokens")
        parts = [{"table": t, "path": p, "rows": r, "bytes": b} for t, p, r, b in self.parts]
        return json.dumps({**{name: getattr(self, name) for name in fields}, "parts": parts}).encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Marker:
        """Parse a marker; BadInput where it is not one."""
        try:
            raw = json.loads(data)
            parts = [(str(p["table"]), str(p["path"]), int(p["rows"]), int(p["bytes"])) for p in raw["parts"]]
            marker = cls(int(raw["step"]), int(raw["rank"]), parts)
            marker.dropped, marker.dropped_tokens = int(raw.get("dropped", 0)), int(raw.get("dropped_tokens", 0))
            marker.world_size = int(raw["world_size"]) if raw.get("world_size") is not None else None
            return marker
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


def counted(by_rank: Mapping[int, Marker], world_size: int) -> tuple[dict[int, Marker], list[int]]:
    """The markers of one step that count, and the ranks that have yet to finish it.

    How many ranks it takes is said by rank 0's marker, or by `world_size` (the manifest's) where it says nothing; what
    is left of an attempt with another number of ranks does not count.
    """
    first = by_rank.get(0)
    world = first.world_size if first and first.world_size else world_size
    used = {rank: m for rank, m in by_rank.items() if rank < world and m.world_size in (None, world)}
    return used, sorted(set(range(world)) - set(used))


def remove_marker(storage: Storage, step: int, rank: int) -> None:
    """Take a rank's marker away: the step counts as unfinished again."""
    storage.fs.rm(storage.full(marker_path(step, rank)))


def damage(storage: Storage, marker: Marker) -> str | None:
    """What is wrong with a marked step's parts: the first missing or truncated one, or None."""
    for _table, path, _rows, size in marker.parts:
        there = storage.size(path)
        if there is None:
            return f"{path} is missing"
        if there != size:
            return f"{path} is truncated or altered ({there:,} of {size:,} bytes)"
    return None
