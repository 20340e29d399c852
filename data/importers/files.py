"""Opening the pickled files of a dump: torch files by their content, one at a time, damaged ones noted and left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from timscope.data.errors import BadInput
from timscope.data.importers.base import Findings
from timscope.data.importers.jsonl import described
from timscope.data.importers.mapped import MappedFile
from timscope.data.importers.pickles import Damaged
from timscope.data.importers.torch_file import load_torch
from timscope.data.importers.unpickle import Names


class OpenFile:
    """A dump file with what was in it. `forget()` frees the memory of what was read so far."""

    def __init__(self, path: Path) -> None:
        """Raises `Damaged` or BadInput where the file cannot be opened."""
        self.path = path
        self._mapped = MappedFile(path)
        self.view = self._mapped.view
        self.unknown: set[str] = set()  # classes whose objects were not read

    def forget(self) -> None:
        """See `MappedFile.forget`."""
        self._mapped.forget()


def open_dump(
    path: Path | None,
    findings: Findings,
    names: Names | None = None,
    load: Callable[[OpenFile], Any] | None = None,
) -> tuple[dict[Any, Any] | None, OpenFile | None]:
    """The dict in a file and the file, or (None, None) where it is missing or damaged (noted as "truncated-dump").

    `load` reads it where it is no torch file. Objects of unknown classes become inert, see `note_unread`. Raises
    BadInput where the file holds anything but a dict, or wants more than data.
    """
    if path is None:
        return None, None
    try:
        file = OpenFile(path)
        data = load(file) if load else load_torch(file.view, path.name, names, file.unknown)
    except Damaged as error:
        findings.note(
            "truncated-dump", "files that are cut short or damaged are left out", file=path.name, error=str(error)
        )
        return None, None
    if not isinstance(data, dict):
        raise BadInput(f"{path} holds {type(data).__name__}, not a dict: give the dump as the framework wrote it")
    file.forget()
    return data, file


def note_unusable(place: str, error: Exception, findings: Findings) -> None:
    """Note a sample that cannot be read: it alone is left out."""
    findings.note("integrity", "samples that cannot be read are left out", place=place, error=described(error))


def note_unread(*files: OpenFile | None, findings: Findings) -> None:
    """Note the classes whose objects were not read."""
    for file in files:
        if file is not None and file.unknown:
            findings.note(
                "unread-objects", "objects of classes that are no plain data were not read",
                file=file.path.name, classes=sorted(file.unknown)[:20],
            )  # fmt: skip
