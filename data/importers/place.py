"""Where an import may write: never into a run that is not its own."""

from __future__ import annotations

import os
from pathlib import Path

from timscope.data.errors import BadInput
from timscope.data.layout import MANIFEST
from timscope.data.manifest_file import read_manifest
from timscope.data.rank_state import FOLDER as RECORDER
from timscope.data.schema import TABLES
from timscope.data.storage import Storage


def prepare(source: Path, run_path: str | os.PathLike[str], format_name: str, overwrite: bool) -> None:
    """Check that `run_path` is free, or holds the same import; with `overwrite` an earlier import is removed.

    Raises BadInput where it holds a recorded run, another import, or other files.
    """
    if not os.fspath(run_path).strip():
        raise BadInput("the name of the run is empty: give a directory")
    storage = Storage(run_path)
    try:
        _prepare(storage, source, run_path, format_name, overwrite)
    except OSError as error:
        raise BadInput(f"{os.fspath(run_path)} cannot be used: {error.strerror or error}; give another one") from error


def _prepare(
    storage: Storage, source: Path, run_path: str | os.PathLike[str], format_name: str, overwrite: bool
) -> None:
    if storage.local and Path(storage.root).resolve() == source.resolve():
        raise BadInput(f"{source} is the dump itself: give another directory for the run")
    if not storage.exists(MANIFEST):
        if storage.names():
            raise BadInput(f"{os.fspath(run_path)} is not empty and holds no run: give a new directory")
        return
    imported = read_manifest(storage).imported
    if imported is None:
        raise BadInput(f"{os.fspath(run_path)} holds a run that was recorded, not imported: give a new directory")
    if overwrite:
        for name in (*TABLES, "replays", "weights", RECORDER, MANIFEST):
            if storage.exists(name):
                storage.fs.rm(f"{storage.root}/{name}", recursive=True)
        return
    if (imported.format, imported.source) != (format_name, str(source.resolve())):
        raise BadInput(
            f"{os.fspath(run_path)} already holds an import of {imported.source} ({imported.format}): give a new "
            "directory or --overwrite"
        )
