"""The tables of a localisation, from its JSON object: what the figures draw and the Parquet files hold."""

from __future__ import annotations

from typing import Any

import polars as pl

_SITE_TYPES = {"order": pl.Int32, "layer": pl.Int32, "elements": pl.Int64}
_NESTED = ("removed_variance", "removed_mean_abs", "explained")


def site_frame(said: dict[str, Any]) -> pl.DataFrame:
    """One row a site, in the order of execution: difference and own_* difference; rms in the site's own unit."""
    return pl.DataFrame(said["sites"], schema_overrides=_SITE_TYPES, infer_schema_length=None)


def swap_frame(said: dict[str, Any]) -> pl.DataFrame | None:
    """One row a swap, the best first; each share with its interval as *_low and *_high. None where none was ranked."""
    if not said.get("swaps"):
        return None
    rows = []
    for row in said["swaps"]["ranking"]:
        flat = {key: value for key, value in row.items() if key not in _NESTED}
        for key in _NESTED:
            flat |= {key: row[key]["value"], f"{key}_low": row[key]["low"], f"{key}_high": row[key]["high"]}
        rows.append(flat)
    return pl.DataFrame(rows, infer_schema_length=None)
