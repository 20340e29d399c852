"""Entries of a certificate: one comparison bit for bit, one control that must fail, and the verdict over all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Report = Callable[[str], None]


def compare(name: str, found: Tensor, reference: Tensor) -> dict[str, Any]:
    """One check. A comparison of nothing proves nothing, and neither does a NaN, which equals no number."""
    count = found.numel()
    return {
        "name": name,
        "equal": count > 0 and torch.equal(found, reference),
        "tokens": count,
        "max_abs_diff": float((found - reference).abs().max()) if count else 0.0,
    }


def control(name: str, found: Tensor, reference: Tensor) -> dict[str, Any]:
    """One negative control: the same comparison where it must not hold."""
    result = compare(name, found, reference)
    return {
        "name": name,
        "failed_as_it_must": not result["equal"],
        "tokens": result["tokens"],
        "max_abs_diff": result["max_abs_diff"],
    }


def certificate(checks: list[dict[str, Any]], controls: list[dict[str, Any]], record: dict[str, Any]) -> dict[str, Any]:
    """The whole: exact only if every check is equal and, of each dtype, at least one control failed."""
    powers: dict[str, bool] = {}
    for entry in controls:
        label = entry["name"].partition(",")[0]
        powers[label] = powers.get(label, False) or entry["failed_as_it_must"]
    exact = all(c["equal"] for c in checks) and all(powers.values())
    return {
        "exact": bool(checks) and bool(controls) and exact,
        "checks": checks,
        "negative_controls": controls,
        "environment": record,
    }
