"""What one rank's recorder lost or could not do, in a file of its own: RUN/recorder/rank=R.json.

The manifest belongs to rank 0 alone, and a killed job never gets to write its last manifest. Every rank therefore keeps
this small file, rewritten by its writer's thread now and then and at the end; the reader puts them together.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any

from timscope.data.errors import BadInput
from timscope.data.storage import Storage

_NAME = re.compile(r"rank=(\d+)\.json$")
FOLDER = "recorder"
_MAX_ERRORS = 20


@dataclass
class RankState:
    """drops: parts; dropped_tokens: of those parts whose tokens could be counted; resumes: of this rank."""

    rank: int
    world_size: int = 1
    resumes: int = 0
    drops: int = 0
    dropped_tokens: int = 0
    errors: list[str] = field(default_factory=list)
    errors_left_out: int = 0
    closed: bool = False

    @property
    def path(self) -> str:
        """recorder/rank=0.json"""
        return f"{FOLDER}/rank={self.rank}.json"

    def add(self, message: str) -> bool:
        """Keep an error once, up to a limit; returns whether it is new."""
        if message in self.errors:
            return False
        if len(self.errors) < _MAX_ERRORS:
            self.errors.append(message)
        else:
            self.errors_left_out += 1
        return True

    def save(self, storage: Storage) -> None:
        """Write the file, atomically."""
        storage.write_bytes(self.path, (json.dumps(asdict(self)) + "\n").encode())

    def problems(self) -> list[str]:
        """Lines for people; the rank is named where it is not the first."""
        lines = list(self.errors)
        if self.errors_left_out:
            lines.append(f"{self.errors_left_out:,} further error(s) of the recorder are not listed")
        if self.drops:
            tokens = f" ({self.dropped_tokens:,} tokens)" if self.dropped_tokens else ""
            lines.append(f"the recorder dropped {self.drops:,} part(s){tokens}: its queue was full")
        return [f"rank {self.rank}: {line}" for line in lines] if self.rank else lines


def read_state(storage: Storage, rank: int) -> RankState | None:
    """One rank's file, None where there is none. BadInput where it is damaged."""
    path = RankState(rank).path
    if not storage.exists(path):
        return None
    try:
        raw: dict[str, Any] = json.loads(storage.read(path))
        known = {name: raw[name] for name in RankState.__dataclass_fields__ if name in raw}
        return RankState(**known)
    except (ValueError, TypeError) as error:
        raise BadInput(f"{storage.full(path)} is damaged ({error}): delete it, it only lists errors") from error


def read_states(storage: Storage) -> list[RankState]:
    """Every rank's file, by rank."""
    ranks = sorted(int(found[1]) for name in storage.names(FOLDER) if (found := _NAME.match(name)))
    return [state for rank in ranks if (state := read_state(storage, rank))]
