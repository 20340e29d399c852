"""The small file that makes a version of the weights visible: written last, atomically, after all it names.

    RUN/weights/version=000012/full.safetensors | delta.zst     or nothing, where the version is a checkpoint elsewhere
    RUN/weights/version=000012/version.json                     what it is

Version counters may restart when a job is resumed from an older checkpoint, and the same number then means other
weights. So a version is known by its number and the job's life it was recorded in (`resume`, as in the table `steps`);
in a later life its folder is called `version=000012.resume=1`.
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from timscope.data.errors import BadInput
from timscope.data.manifest_file import read_model
from timscope.data.schema import SCHEMA_VERSION
from timscope.data.storage import Storage

FOLDER = "weights"
VERSION_FILE = "version.json"
_FOLDER_NAME = re.compile(r"version=(\d+)(?:\.resume=(\d+))?$")

Key = tuple[int, int]  # version, resume


class StoredFile(BaseModel):
    """A file of a version and its bytes; relative to the version's folder, or to the checkpoint."""

    name: str
    bytes: int


class Entry(BaseModel):
    """One stored version. `digest`: SHA-256 by `digest_tensors`; `fingerprint`: by `fingerprint`."""

    model_config = ConfigDict(extra="allow")

    schema_version: int = SCHEMA_VERSION
    version: int
    resume: int = 0
    kind: Literal["full", "delta", "checkpoint"]
    base: Key | None = None  # a delta's version before
    depth: int = 0  # deltas from the full snapshot to here
    files: list[StoredFile] = Field(default_factory=list)
    path: str | None = None  # a checkpoint's folder, relative to the run where it lies inside
    digest: str | None = None
    fingerprint: str | None = None
    tensor_bytes: int | None = None  # of the uncompressed weights

    @property
    def key(self) -> Key:
        """(version, resume)"""
        return self.version, self.resume

    @property
    def folder(self) -> str:
        """weights/version=000012"""
        return version_folder(self.key)


def version_folder(key: Key) -> str:
    """weights/version=000012, or weights/version=000012.resume=1"""
    version, resume = key
    if version < 0 or resume < 0:
        raise ValueError(f"weights version {version}, resume {resume}: both count from 0")
    return f"{FOLDER}/version={version:06d}" + (f".resume={resume}" if resume else "")


def stored_keys(storage: Storage, version: int | None = None) -> list[Key]:
    """Keys of all versions that were written whole (or of one version's lives), sorted."""
    matches = [match for name in storage.names(FOLDER) if (match := _FOLDER_NAME.match(name))]
    keys = sorted((int(match[1]), int(match[2] or 0)) for match in matches)
    return [key for key in keys if version in (None, key[0]) and is_stored(storage, key)]


def is_stored(storage: Storage, key: Key) -> bool:
    """Whether a version was written whole."""
    return storage.exists(f"{version_folder(key)}/{VERSION_FILE}")


def read_entry(storage: Storage, key: Key) -> Entry:
    """A version's file. BadInput where it is damaged or speaks of another version."""
    path = f"{version_folder(key)}/{VERSION_FILE}"
    entry = read_model(storage, path, Entry)
    if entry.key != key:
        raise BadInput(
            f"{storage.full(path)} describes weights version {entry.version}: the folder was renamed, undo it"
        )
    return entry


def write_entry(storage: Storage, entry: Entry) -> None:
    """Make a version visible."""
    text = entry.model_dump_json(indent=2, exclude_none=True) + "\n"
    storage.write_bytes(f"{entry.folder}/{VERSION_FILE}", text.encode())
