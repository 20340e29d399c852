"""The two figures of a localisation: how the difference grows over depth, and what each swap removes."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from timscope.analysis.figure_style import (
    COVARIANCE,
    FONT,
    INK,
    ROLLOUT_SIDE,
    TOTAL,
    TOTAL_LIGHT,
    TRAINER_SIDE,
    figure,
    label,
)

# Name in the legend, the sites it stands for, colour, marker: a reader never depends on colour alone.
_OPS = (
    ("norms", ("input_layernorm", "post_attention_layernorm", "q_norm", "k_norm", "norm"), TOTAL, "o"),
    ("q, k, v products", ("q_proj", "k_proj", "v_proj"), "#E69F00", "v"),
    ("rope, KV cache", ("q_rope", "k_rope", "v_cache", "rotary_emb"), TOTAL_LIGHT, "^"),
    ("attention", ("attention",), ROLLOUT_SIDE, "s"),
    ("MLP products, o_proj", ("o_proj", "gate_proj", "up_proj", "down_proj"), TRAINER_SIDE, "D"),
    ("activation, gate", ("act_fn", "gate_times_up"), COVARIANCE, "P"),
    ("residual", ("residual_attention", "residual_mlp"), INK, "x"),
)
_ENDS = (("embed_tokens", -1.0), ("norm", 0.0), ("logits", 1.0), ("log_softmax", 2.0))
_FLOOR = 1e-12
_STATES = {
    "removes": (TRAINER_SIDE, "", "removes (interval above 0)"),
    "adds": (ROLLOUT_SIDE, "//", "adds (interval below 0)"),
    "unresolved": ("#BBBBBB", "..", "unclear"),
}


def plot_sites(frame: pl.DataFrame, left: str, right: str) -> Figure | None:
    """Relative rms difference by layer, inherited and own, from `site_frame`; None where the two never part."""
    if not (frame["relative"].fill_null(0.0) > 0).any():
        return None
    made, (top, bottom) = figure((3.2, 3.2))
    depth = int(frame["layer"].max() or 0)  # type: ignore[arg-type]
    for ax, column in ((top, "relative"), (bottom, "own_relative")):
        for name, ops, color, marker in _OPS:
            chosen = frame.filter(pl.col("op").is_in(ops) & pl.col("layer").is_not_null())
            _line(ax, chosen, column, name, color, marker)
        for op, offset in _ENDS:
            _end(ax, frame.filter(pl.col("op") == op), column, -1.0 if offset < 0 else depth + 1.0 + offset)
        _log(ax)
    ends = [-1, *range(0, depth + 1, max(1, (depth + 1) // 6)), *(depth + 1 + i for i in range(3))]
    names = ["embed", *(str(i) for i in ends[1:-3]), "norm", "logits", "log p"]
    bottom.set_xticks(ends, names)
    for tick in [bottom.get_xticklabels()[0], *bottom.get_xticklabels()[-3:]]:
        tick.set(rotation=40, ha="right", rotation_mode="anchor")
    label(top, y="all so far", title=f"{right} against {left}: rms difference over rms of the value, by layer")
    label(bottom, x="layer", y="this operation alone")
    made.align_ylabels()
    handles, texts = top.get_legend_handles_labels()
    made.legend(handles, texts, fontsize=FONT - 1, frameon=False, ncols=4, loc="outside lower center")
    return made


def _line(ax: Axes, frame: pl.DataFrame, column: str, name: str, color: str, marker: str) -> None:
    """The largest difference of a kind of operation in each layer; layers where it is exactly 0 have no mark."""
    found = frame.group_by("layer").agg(pl.col(column).max()).sort("layer")
    values = found[column].cast(pl.Float64).to_numpy().astype(float)
    values = np.where(values > _FLOOR, values, np.nan)
    style: dict[str, Any] = {"linewidth": 1.3, "markersize": 4, "color": color, "marker": marker}
    ax.plot(found["layer"].to_numpy(), values, label=name, **style)


def _end(ax: Axes, frame: pl.DataFrame, column: str, at: float) -> None:
    value = frame[column].item() if frame.height else None
    if value:
        ax.plot([at], [value], color=INK, marker="*", markersize=9, linestyle="none")


def _log(ax: Axes) -> None:
    values = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in ax.get_lines()])
    values = values[np.isfinite(values)]
    if values.size:
        ax.set_yscale("log")
        low, high = np.floor(np.log10(values.min())), np.ceil(np.log10(values.max()))
        ax.set_ylim(0.8 * 10**low, 1.25 * 10 ** max(high, low + 1))
        ax.yaxis.set_minor_formatter(NullFormatter())


def plot_swaps(frame: pl.DataFrame, start: str, target: str) -> Figure | None:
    """Share of the variance of target - start that each swap removes, from `swap_frame`; None where there is none.

    Swaps that change no bit share the last line. Right of a bar: how much of d its change explains, and its size.
    """
    shown = frame.filter(pl.col("removed_variance").is_finite() & (pl.col("state") != "nothing"))
    if not shown.height:
        return None
    still = frame.filter((pl.col("state") == "nothing") & (pl.col("group") != "control"))["name"].to_list()
    made, (ax,) = figure([1.9 + 0.27 * shown.height])
    # A swap that makes things many times worse would squeeze all others, so bars are cut.
    high = max(0.12, 1.1 * float(shown["removed_variance_high"].fill_nan(0.0).max() or 0.0))  # type: ignore[arg-type]
    cut = -max(1.0, 1.5 * high)
    for y, row in enumerate(shown.iter_rows(named=True)):
        _bar(ax, y, row, cut)
    for state, (color, hatch, text) in _STATES.items():
        if (shown["state"] == state).any():
            ax.barh([0], [0], color=color, hatch=hatch, edgecolor="white", label=text)
    ax.set_yticks(range(shown.height), shown["name"].to_list())
    ax.set_ylim(shown.height - 0.4, -0.6)
    ax.axvline(0, color=INK, linewidth=0.8)
    ax.set_xlim(1.35 * cut, 1.15 * high)
    ax.grid(False, axis="y")
    ax.xaxis.set_major_locator(MaxNLocator(8))
    ax.xaxis.set_major_formatter(lambda value, _at: f"{100 * value:.0f} %".replace("-", "−"))
    x = f"share of var({target} − {start}) removed, 95 % interval by sequence"
    if (shown["removed_variance"] < cut).any():
        x += "; × n: the variance grows n-fold"
    label(ax, x=x if not still else x + f"\nchange no bit: {', '.join(still)}")
    head = {"xycoords": ax.get_yaxis_transform(), "ha": "left", "va": "bottom", "fontsize": FONT - 2, "color": INK}
    ax.annotate("explained    size", (1.015, -0.6), **head)  # type: ignore[arg-type]
    made.legend(*ax.get_legend_handles_labels(), fontsize=FONT - 1, frameon=False, ncols=3, loc="outside upper center")
    return made


def _bar(ax: Axes, y: int, row: dict[str, Any], cut: float) -> None:
    style: dict[str, Any] = {"va": "center", "fontsize": FONT - 2, "color": INK}
    value, (color, hatch, _) = row["removed_variance"], _STATES[row["state"]]
    ax.barh(y, max(value, cut), color=color, hatch=hatch, edgecolor="white", height=0.7)
    at = ax.get_yaxis_transform()
    ax.annotate(_percent(row["explained"]), (1.085, y), xycoords=at, ha="right", **style)
    ax.annotate(f"{row['size']:.2g}", (1.115, y), xycoords=at, ha="left", **style)
    if value < cut:
        ax.annotate(f"× {1 - value:.2g}", (cut, y), xytext=(-4, 0), textcoords="offset points", ha="right", **style)
        return
    low, high = max(row["removed_variance_low"], cut), row["removed_variance_high"]
    if np.isfinite(low) and np.isfinite(high):
        ax.plot([low, high], [y, y], color=INK, linewidth=1.3)
    end = min(np.nanmin([low, value]), 0.0)
    text = _percent(value, sign=True)
    ax.annotate(text, (end, y), xytext=(-5, 0), textcoords="offset points", ha="right", **style)


def _percent(share: float, sign: bool = False) -> str:
    text = f"{100 * share:+.1f} %" if sign else f"{100 * share:.1f} %"
    return text.replace("-", "−")
