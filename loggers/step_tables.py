"""From what was said of a step as a whole to its rows in `steps` and `gradients`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from timscope.loggers.fitting import whole_number
from timscope.loggers.guard import Guard
from timscope.loggers.pinned import resolve


def metric_row(metrics: Mapping[str, Any], guard: Guard) -> dict[str, Any]:
    """The step's row: numbers under their names, None where not measured; one that cannot be read turns itself off."""
    row: dict[str, Any] = {"loss": None}
    for name, held in metrics.items():
        with guard.column(f"steps.{name}"):
            value = resolve(held)
            row[name] = None if value is None else float(value)
    if (version := row.pop("weight_version", None)) is not None:
        with guard.column("steps.weight_version"):
            row["weight_version"] = whole_number(version)
    return row


def gradient_table(said: Sequence[Any], guard: Guard) -> dict[str, Any]:
    """One row a parameter group. `said`: mappings, or objects whose `result()` gives one."""
    rows: list[dict[str, Any]] = []
    with guard.column("gradients"):
        for groups in said:
            found: Mapping[str, Any] = groups.result() if hasattr(groups, "result") else groups
            for name, values in found.items():
                fields = values if isinstance(values, Mapping) else {"norm": values}
                rows.append({"parameter_group": str(name), **{k: _field(k, v) for k, v in fields.items()}})
    names = {name: None for row in rows for name in row}
    return {name: [row.get(name) for row in rows] for name in names}


def _field(name: str, value: Any) -> Any:
    value = resolve(value)
    if value is None:
        return None
    if name == "sketch":
        return np.asarray(value, np.float32)
    return int(value) if name == "nonfinite" else float(value)
