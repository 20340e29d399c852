"""The files of the steps that one rank writes: parts, then the COMPLETE marker that makes them count.

Used by the writer's thread alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from timscope.data.layout import Marker, marker_path, part_path, step_dir
from timscope.data.parts import Columns, to_arrow, write_part
from timscope.data.storage import Storage


class StepFiles:
    """Writes parts under free numbers and remembers them for the marker. `fresh`: nothing of this rank is on disk."""

    def __init__(self, storage: Storage, rank: int, world_size: int, fresh: bool) -> None:
        self._storage, self._rank, self._world, self._fresh = storage, rank, world_size, fresh
        self._markers: dict[int, Marker] = {}
        self._numbers: dict[int, dict[str, int]] = {}
        self.failed: set[int] = set()

    def write(self, step: int, tables: Mapping[str, Columns]) -> None:
        """One part a table; tables without columns are skipped. BadInput where a column does not fit."""
        for table, columns in tables.items():
            if not columns:
                continue
            data = to_arrow(table, step, columns)
            path = part_path(table, step, self._rank, self._number(table, step))
            size = write_part(self._storage, path, data)
            self._marker(step).parts.append((table, path, data.num_rows, size))

    def mark(self, step: int, dropped: tuple[int, int] = (0, 0)) -> None:
        """Finish the step, unless a write of it failed. `dropped`: parts and tokens that were lost."""
        marker = self._marker(step)
        marker.dropped, marker.dropped_tokens = dropped
        self._numbers.pop(step, None)
        del self._markers[step]
        if step not in self.failed:
            self._storage.write_bytes(marker_path(step, self._rank), marker.to_bytes())

    def _marker(self, step: int) -> Marker:
        return self._markers.setdefault(step, Marker(step, self._rank, world_size=self._world))

    def _number(self, table: str, step: int) -> int:
        """The next free part number: a resumed run never overwrites what a crash left behind."""
        numbers = self._numbers.setdefault(step, {})
        if table not in numbers:
            names = [] if self._fresh else self._storage.names(step_dir(table, step))
            numbers[table] = sum(name.startswith(f"rank={self._rank}-") for name in names)
        numbers[table] += 1
        return numbers[table] - 1
