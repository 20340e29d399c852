"""Where converted models are kept between runs: one folder a content hash, made whole or not at all."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path


def cache_dir() -> Path:
    """TIMSCOPE_CACHE, or the platform's usual place for files that can be made again."""
    if chosen := os.environ.get("TIMSCOPE_CACHE"):
        return Path(chosen)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "timscope" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "timscope"
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "timscope"


def cached_folder(key: str, make: Callable[[Path], None]) -> Path:
    """The folder `key` in the cache; made by `make` in a temporary folder beside it and renamed when whole.

    Two processes may make it at once: the first rename wins and the second result is thrown away.
    """
    target = cache_dir() / key
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        make(work)
        try:
            work.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target
