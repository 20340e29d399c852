"""A file as memory: mapped, so that a dump larger than memory can be read, and droppable, so that none piles up."""

from __future__ import annotations

import mmap
from pathlib import Path

from timscope.data.errors import BadInput
from timscope.data.importers.pickles import Damaged


class MappedFile:
    """A read-only view of a whole file; arrays made of it keep it open."""

    def __init__(self, path: Path) -> None:
        """Raises `Damaged` for an empty file, BadInput for one that cannot be opened."""
        try:
            with path.open("rb") as handle:
                if not handle.seek(0, 2):
                    raise Damaged(f"{path} is empty: copy it again")
                self._map = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise BadInput(
                f"{path} cannot be read ({error.strerror or error}): give the file that the framework wrote, with the "
                "right to read it"
            ) from error
        self.view = memoryview(self._map)

    def forget(self) -> None:
        """Give the pages read so far back to the system; what is read again is read from the file again."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)
