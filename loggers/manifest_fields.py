"""Manifest fields as a training script gives them, checked one by one before they reach the manifest.

The manifest is the one file without which a run cannot be read: a field that does not fit is turned off, not written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from timscope.data import Manifest
from timscope.loggers.guard import Guard

# Fields that may be given as a bare name.
_NAMED = ("framework", "model", "tokenizer", "rollout", "trainer", "algorithm")


def manifest_fields(fields: Mapping[str, Any], guard: Guard) -> dict[str, Any]:
    """The fields that fit, as the manifest holds them; any other is turned off as `manifest.<field>`."""
    kept: dict[str, Any] = {}
    for name, value in fields.items():
        with guard.column(f"manifest.{name}"):
            said = {"name": value} if name in _NAMED and isinstance(value, str) else value
            checked = Manifest.model_validate({name: said})
            checked.model_dump_json(include={name})  # raises for what JSON cannot hold
            kept[name] = getattr(checked, name)
    return kept
