"""Where a run lies: a folder or any fsspec URL, with writes that are all there or not there at all.

A file appears under its final name only when it is complete: it is written beside it and renamed. Object stores write
whole objects anyway, so there the final name is written directly.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from typing import IO, Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from timscope.data.errors import BadInput


class Storage:
    """One run directory on some file system. Paths given to its methods are relative to the run."""

    def __init__(self, url: str | os.PathLike[str]) -> None:
        try:
            self.fs, root = fsspec.core.url_to_fs(os.fspath(url))
        except (ImportError, ValueError) as error:
            raise BadInput(f"cannot open {os.fspath(url)}: {error}") from error
        self.root: str = root.rstrip("/") or "/"
        self.local = isinstance(self.fs, LocalFileSystem)

    def full(self, path: str) -> str:
        """The path as DuckDB and other readers take it. Refuses to leave the run directory."""
        parts = path.split("/")
        if path.startswith("/") or ".." in parts or "\\" in path or "://" in path:
            raise BadInput(f"the path {path!r} leads out of the run directory: this file was not written by timscope")
        whole = f"{self.root}/{path}" if path else self.root
        return whole if self.local else str(self.fs.unstrip_protocol(whole))

    def _raw(self, path: str) -> str:
        self.full(path)
        return f"{self.root}/{path}" if path else self.root

    def exists(self, path: str = "") -> bool:
        """Whether the file or folder is there."""
        return bool(self.fs.exists(self._raw(path)))

    def size(self, path: str) -> int | None:
        """Bytes of a file, None where it is missing."""
        try:
            return int(self.fs.size(self._raw(path)))
        except FileNotFoundError:
            return None

    def names(self, path: str = "") -> list[str]:
        """Names in a folder, sorted; empty where there is no such folder."""
        try:
            self.fs.invalidate_cache()
            entries = self.fs.ls(self._raw(path), detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(str(e).rstrip("/").rsplit("/", 1)[-1] for e in entries)

    def read(self, path: str) -> bytes:
        """A file's bytes."""
        data = self.fs.cat_file(self._raw(path))
        return data if isinstance(data, bytes) else bytes(data)

    def write(self, path: str, fill: Callable[[IO[Any]], None]) -> int:
        """Write a file through `fill(handle)`, atomically; returns its bytes."""
        final = self._raw(path)
        self.fs.makedirs(final.rsplit("/", 1)[0], exist_ok=True)
        target = f"{final}.{uuid.uuid4().hex[:8]}.tmp" if self.local else final
        try:
            with self.fs.open(target, "wb") as handle:
                fill(handle)
            if self.local:
                os.replace(target, final)
        except BaseException:
            if self.local and os.path.exists(target):
                os.unlink(target)
            raise
        size = self.size(path)
        assert size is not None
        return size

    def write_bytes(self, path: str, data: bytes) -> int:
        """Write a small file atomically."""

        def fill(handle: IO[Any]) -> None:
            handle.write(data)

        return self.write(path, fill)
