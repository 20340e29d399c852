"""A replay of a run: one more witness, stored beside the run under replays/NAME and keyed like its tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timscope.data.errors import BadInput
from timscope.data.layout import (
    CERTIFICATE,
    MANIFEST,
    Marker,
    damage,
    marker_path,
    markers,
    part_path,
    replay_dir,
)
from timscope.data.manifest import ReplayManifest
from timscope.data.manifest_file import read_model
from timscope.data.parts import Columns, to_arrow, write_part
from timscope.data.schema import REPLAY_COLUMNS, replay_schema
from timscope.data.storage import Storage

# What a proof holds for; "engine" in an environment is the version of the implementation that computed.
_PROVED = ("engine", "torch", "triton", "cpu", "gpu")


@dataclass(frozen=True)
class Replay:
    """A replay as the reader sees it. `parts` are full paths of complete steps only."""

    name: str
    manifest: ReplayManifest
    certificate: dict[str, Any] | None
    complete_steps: list[int]
    parts: list[str]

    @property
    def column(self) -> str:
        """The log-prob column it adds, e.g. exact_logprob."""
        return REPLAY_COLUMNS[self.manifest.engine]

    @property
    def certified(self) -> bool:
        """Whether its certificate says that the engine was bitwise exact on the machine that ran it.

        A certificate of another implementation, library or processor is none of this replay.
        """
        if not self.certificate or not self.certificate.get("exact"):
            return False
        proved, ran = self.certificate.get("environment") or {}, self.manifest.environment
        return all(proved.get(key) == ran.get(key) for key in _PROVED)


def read_replay(storage: Storage, name: str) -> Replay:
    """Read a replay's manifest, certificate and markers. BadInput where a part it lists is missing or cut short."""
    prefix = replay_dir(name) + "/"
    manifest = read_model(storage, prefix + MANIFEST, ReplayManifest)
    certificate = None
    if storage.exists(prefix + CERTIFICATE):
        try:
            certificate = json.loads(storage.read(prefix + CERTIFICATE))
        except ValueError as error:
            raise BadInput(
                f"{storage.full(prefix + CERTIFICATE)} is not valid JSON: delete it and replay again"
            ) from error
    steps, parts = [], []
    for step, shards in sorted(markers(storage, prefix).items()):
        for marker in shards.values():
            if wrong := damage(storage, marker):
                raise BadInput(f"{wrong}: delete {storage.full(prefix.rstrip('/'))} and replay again")
            parts += [storage.full(path) for _table, path, _rows, _bytes in marker.parts]
        steps.append(step)
    return Replay(name, manifest, certificate, steps, parts)


def _said(manifest: ReplayManifest, key: str) -> Any:
    """A field of the manifest, or of its environment; the engine is both: the witness and what computed it."""
    field, detail = getattr(manifest, key, None), manifest.environment.get(key)
    if key == "engine":
        return f"{field} ({detail})" if detail else field
    return field or detail


def replay_names(storage: Storage) -> list[str]:
    """Names of the replays stored beside a run."""
    return [n for n in storage.names("replays") if storage.exists(f"replays/{n}/{MANIFEST}")]


class ReplayWriter:
    """Stores a replay step by step; opening an existing one of the same engine and weights resumes it.

    Raises BadInput where a replay of that name exists under another engine, dtype, model or machine.
    """

    def __init__(self, run_path: str | Path, manifest: ReplayManifest) -> None:
        self.storage, self.manifest = Storage(run_path), manifest
        self._prefix = replay_dir(manifest.name) + "/"
        self._schema = replay_schema(manifest.engine)
        self._pending: dict[int, Marker] = {}
        if self.storage.exists(self._prefix + MANIFEST):
            old = read_model(self.storage, self._prefix + MANIFEST, ReplayManifest)
            # Bits of two machines must not meet under one certificate.
            for key in ("dtype", "model_digest", "temperature", "device", "emulation", *_PROVED):
                there, here = (_said(m, key) for m in (old, manifest))
                if there != here:
                    raise BadInput(
                        f"replay {manifest.name!r} exists with {key} {there!r}, not {here!r}: "
                        "choose another name or delete it"
                    )
        self._write_json(MANIFEST, manifest.model_dump_json(indent=2))
        self.complete_steps = set(markers(self.storage, self._prefix))

    def _write_json(self, name: str, text: str) -> None:
        self.storage.write_bytes(self._prefix + name, (text + "\n").encode())

    @property
    def path(self) -> str:
        """Full path of the replay's folder."""
        return self.storage.full(self._prefix.rstrip("/"))

    def put(self, step: int, columns: Columns) -> None:
        """Write one part: sequence, position, the engine's log-prob and entropy columns (nats)."""
        table = to_arrow("replay", step, columns, self._schema)
        marker = self._pending.setdefault(step, Marker(step, 0))
        path = self._prefix + part_path("tokens", step, 0, len(marker.parts))
        size = write_part(self.storage, path, table)
        marker.parts.append(("tokens", path, table.num_rows, size))

    def complete(self, step: int) -> None:
        """Mark a step's replay finished."""
        marker = self._pending.pop(step, Marker(step, 0))
        self.storage.write_bytes(marker_path(step, 0, self._prefix), marker.to_bytes())
        self.complete_steps.add(step)

    def write_certificate(self, certificate: dict[str, Any]) -> None:
        """Stamp the replay with the proof (or the failure) of its engine on this machine."""
        self._write_json(CERTIFICATE, json.dumps(certificate, indent=2))
