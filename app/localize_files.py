"""Files of a localisation: the JSON object, tables as Parquet, figures as PNG and SVG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson


def write_files(folder: Path, said: dict[str, Any], tokens: dict[str, Any]) -> list[str]:
    """Write everything into `folder`, made where it is missing; returns the paths."""
    import polars as pl

    from timscope.analysis.localize_data import site_frame, swap_frame
    from timscope.analysis.localize_plots import plot_sites, plot_swaps

    folder.mkdir(parents=True, exist_ok=True)
    sites, swaps = site_frame(said), swap_frame(said)
    written = [folder / "localize.json", folder / "sites.parquet", folder / "tokens.parquet"]
    written[0].write_bytes(orjson.dumps(said, option=orjson.OPT_INDENT_2))
    sites.write_parquet(written[1])
    pl.DataFrame(tokens).write_parquet(written[2])
    figures = {"sites": plot_sites(sites, said["left"]["name"], said["right"]["name"])}
    if swaps is not None:
        written.append(folder / "swaps.parquet")
        swaps.write_parquet(written[-1])
        figures["swaps"] = plot_swaps(swaps, said["swaps"]["start"], said["swaps"]["target"])
    for name, drawn in figures.items():
        if drawn is not None:
            for kind in ("png", "svg"):
                written.append(folder / f"{name}.{kind}")
                drawn.savefig(written[-1], dpi=150)
    return [str(path) for path in written]
