"""A framework's own checkpoint as a version's weights: a Hugging Face folder of safetensors, whole or in shards.

Nothing is copied. What is remembered is where it lies and how large its files are, so that one that was rotated away or
written over is noticed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from timscope.data.storage import Storage
from timscope.data.weights.entry import StoredFile
from timscope.data.weights.snapshot_file import SnapshotFile
from timscope.data.weights.tensors import Layout, LazyTensors, RawTensor

_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_HEAD = "lm_head.weight"


class Checkpoint(LazyTensors):
    """The tensors of a checkpoint folder. ValueError where there is no safetensors model in it or it is damaged."""

    def __init__(self, storage: Storage) -> None:
        self._parts = {name: SnapshotFile(storage, name) for name in _files(storage)}
        self._owner = {name: part for part in self._parts.values() for name in part.layouts}
        if _HEAD in self._owner and _tied(storage):
            del self._owner[_HEAD]  # one tensor with the embedding, as in every digest

    @property
    def layouts(self) -> Mapping[str, Layout]:
        """dtype and shape of every tensor."""
        return {name: part.layouts[name] for name, part in self._owner.items()}

    def __getitem__(self, name: str) -> RawTensor:
        """Read one tensor."""
        return self._owner[name][name]


def has_weights(folder: str | os.PathLike[str]) -> bool:
    """Whether there is a safetensors model in a folder."""
    storage = Storage(folder)
    return storage.exists(_WHOLE) or storage.exists(_INDEX)


def checkpoint_files(storage: Storage) -> list[StoredFile]:
    """The weight files of a checkpoint folder with their sizes. ValueError where one is missing."""
    found = []
    for name in _files(storage):
        if (size := storage.size(name)) is None:
            raise ValueError(f"{name} is missing")
        found.append(StoredFile(name=name, bytes=size))
    return found


def _files(storage: Storage) -> list[str]:
    if storage.exists(_WHOLE):
        return [_WHOLE]
    if not storage.exists(_INDEX):
        raise ValueError(f"no {_WHOLE} or {_INDEX}")
    try:
        return sorted({str(name) for name in json.loads(storage.read(_INDEX))["weight_map"].values()})
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"{_INDEX} is damaged ({error!r})") from error


def _tied(storage: Storage) -> bool:
    if not storage.exists("config.json"):
        return False
    try:
        config = json.loads(storage.read("config.json"))
        return bool(config.get("tie_word_embeddings", False))
    except (AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"config.json is damaged ({error!r})") from error
