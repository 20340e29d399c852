"""The formats that can be imported, in the order in which they are tried."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

from timscope.data.errors import BadInput
from timscope.data.importers.base import Format

# Module names. Formats with token ids come before those of the same framework with text alone.
MODULES = (
    "slime", "skyrl", "verl_batch", "roll_pickle", "nemo_rl", "prime_rl", "areal", "trl_parquet", "roll_jsonl",
    "verl_jsonl", "metrics_jsonl",
)  # fmt: skip


def formats() -> dict[str, Format]:
    """Every format by name."""
    found = [import_module(f"timscope.data.importers.{name}") for name in MODULES]
    return {one.FORMAT.name: one.FORMAT for one in found}


def choose(source: Path, name: str = "auto") -> Format:
    """The format called `name`, or the one that recognises `source`.

    Raises BadInput that lists the formats where none or several match.
    """
    known = formats()
    if name != "auto":
        if name not in known:
            raise BadInput(f"{name!r} is no format: there are {', '.join(known)}")
        return known[name]
    if not os.path.exists(source):  # Path.exists raises where a name is too long
        raise BadInput(f"{source} does not exist: give the file or folder that the framework wrote")
    matching = [one for one in known.values() if one.detect(source)]
    if not matching:
        what = "the folder that holds it, as the framework wrote it" if source.is_file() else "the dump's own folder"
        raise BadInput(
            f"{source} is not a dump that is known here: give {what}, or name its format with --format "
            f"({', '.join(known)})"
        )
    if len(matching) > 1:
        raise BadInput(f"{source} may be {' or '.join(one.name for one in matching)}: choose with --format")
    return matching[0]
