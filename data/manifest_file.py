"""Reading and writing manifest.json, with errors that a person can act on."""

from __future__ import annotations

import json
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from timscope.data.errors import BadInput
from timscope.data.layout import MANIFEST
from timscope.data.manifest import Manifest
from timscope.data.schema import SCHEMA_VERSION
from timscope.data.storage import Storage

M = TypeVar("M", bound=BaseModel)


def read_model(storage: Storage, path: str, model: type[M]) -> M:
    """Parse a JSON file of the run into a pydantic model; BadInput where it is damaged or from a newer timscope."""
    try:
        raw = json.loads(storage.read(path))
        version = raw.get("schema_version")
    except (ValueError, AttributeError) as error:
        raise BadInput(
            f"{storage.full(path)} is not valid JSON ({error}): restore it from the recorder's copy"
        ) from error
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise BadInput(
            f"{storage.full(path)} has schema_version {version!r} and this timscope reads up to {SCHEMA_VERSION}: "
            "upgrade timscope"
        )
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(p) for p in first["loc"])
        raise BadInput(f"{storage.full(path)}: {where}: {first['msg']}") from error


def read_manifest(storage: Storage) -> Manifest:
    """The run's manifest."""
    return read_model(storage, MANIFEST, Manifest)


def write_manifest(storage: Storage, manifest: Manifest) -> None:
    """Write the run's manifest atomically."""
    storage.write_bytes(MANIFEST, (manifest.model_dump_json(indent=2) + "\n").encode())
