"""How figures look: the Okabe-Ito palette, which colour-blind readers can tell apart, and a maker without pyplot."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Every series keeps its colour, marker and line style in all figures, so no reader depends on colour alone.
TOTAL, ROLLOUT_SIDE, TRAINER_SIDE, COVARIANCE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
TOTAL_LIGHT = "#56B4E9"
INK, GRID = "#222222", "#DDDDDD"

FONT = 11


def figure(heights: Sequence[float], columns: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure 8.6 inches wide with len(heights) x `columns` axes, row by row; all share x, and each row shares y.

    `heights` are those of the rows in inches.
    """
    made = Figure(figsize=(8.6, sum(heights)), layout="constrained", facecolor="white")
    made.subplots(len(heights), columns, squeeze=False, sharex=True, sharey="row", height_ratios=heights)
    axes = made.get_axes()
    for ax in axes:
        ax.grid(True, color=GRID, linewidth=0.7)
        ax.set_axisbelow(True)
        ax.tick_params(labelsize=FONT - 1, colors=INK)
        ax.spines[["top", "right"]].set_visible(False)
    return made, axes


def label(ax: Axes, x: str | None = None, y: str | None = None, title: str | None = None) -> None:
    """Axis labels and a left-aligned title in the common font size."""
    if x:
        ax.set_xlabel(x, fontsize=FONT, color=INK)
    if y:
        ax.set_ylabel(y, fontsize=FONT, color=INK)
    if title:
        ax.set_title(title, fontsize=FONT, loc="left", color=INK)
