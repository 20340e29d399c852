"""The figures of a report, drawn on matplotlib's Figure directly: no pyplot, no global state, safe without a display.

A is the rollout engine, C the trainer (old), Z the exact engine. Each function returns None where the run lacks the
data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from timscope.analysis import figure_data as data
from timscope.analysis.columns import EXACT, ROLLOUT, TRAINER
from timscope.analysis.decomposition import decompose
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
from timscope.analysis.findings import percent, share
from timscope.analysis.sides import Z95
from timscope.data import Run

Drawer = Callable[[Run], Figure | None]


def plot_timeline(run: Run) -> Figure | None:
    """Mean and max |A - C| and k3 by step, with the two sides where a step was replayed."""
    frame = data.timeline(run)
    if not frame["mean_abs"].count():
        return None
    made, (top, bottom) = figure((3.6, 2.0))
    step = frame["step"].to_numpy()
    style: dict[str, Any] = {"linewidth": 1.8, "markersize": 4}
    _line(top, step, frame["max_abs"], color=TOTAL_LIGHT, linestyle="--", marker="^", label="max |A − C|", **style)
    _line(top, step, frame["mean_abs"], color=TOTAL, marker="o", label="mean |A − C|", **style)
    points: dict[str, Any] = {"linestyle": "none", "markersize": 9, "markerfacecolor": "none", "markeredgewidth": 1.8}
    for key, color, marker, text in (
        ("mean_abs_rollout", ROLLOUT_SIDE, "s", "mean |A − Z| (rollout)"),
        ("mean_abs_trainer", TRAINER_SIDE, "D", "mean |Z − C| (trainer)"),
    ):
        _line(top, step, frame[key], color=color, marker=marker, label=text, **points)
    _line(bottom, step, frame["k3"], color=TOTAL, marker="o", **style)
    for ax in (top, bottom):
        _log_y(ax)
    bottom.xaxis.set_major_locator(MaxNLocator(integer=True))
    label(top, y="nats a token")
    label(bottom, x="step", y="k3(A, C), nats")
    made.align_ylabels()
    top.legend(fontsize=FONT - 1, frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
    return made


def _line(ax: Axes, x: np.ndarray[Any, Any], y: pl.Series, **style: Any) -> None:
    """A series, unless nothing of it was measured: then it gets no legend entry either."""
    values = y.to_numpy().astype(float)
    if np.isfinite(values).any():
        ax.plot(x, values, **style)


def _log_y(ax: Axes) -> None:
    """A log axis over whole decades, so that a few percent of noise do not fill the panel; linear if all is 0."""
    values = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in ax.get_lines()])
    values = values[np.isfinite(values) & (values > 0)]
    if not values.size:
        return
    ax.set_yscale("log")
    ax.set_ylim(0.8 * 10 ** np.floor(np.log10(values.min())), 1.25 * 10 ** np.ceil(np.log10(values.max())))
    ax.yaxis.set_minor_formatter(NullFormatter())


def plot_distribution(run: Run) -> Figure | None:
    """Distribution of |d| for A - C, A - Z and Z - C on log axes; the legend says how many tokens are exactly equal."""
    made, (ax,) = figure([4.4])
    series = (
        ("A − C  rollout vs trainer", ROLLOUT, TRAINER, TOTAL, "-"),
        ("A − Z  rollout vs exact", ROLLOUT, EXACT, ROLLOUT_SIDE, "--"),
        ("Z − C  exact vs trainer", EXACT, TRAINER, TRAINER_SIDE, "-."),
    )
    for name, left, right, color, style in series:
        frame = data.distribution(run, left, right)
        total = int(frame["tokens"].sum())
        if not total:
            continue
        zeros = int(frame.filter(pl.col("bin").is_null())["tokens"].sum())
        text = f"{name}: {total:,} tokens, {percent(zeros / total)} exactly 0"
        found = frame.drop_nulls()
        if not found.height:
            ax.plot([], [], color=color, linestyle=style, label=text)
            continue
        first, last = int(found["bin"].min()), int(found["bin"].max())  # type: ignore[arg-type]
        shares = np.zeros(last - first + 1)
        shares[found["bin"].to_numpy() - first] = found["tokens"].to_numpy() / total
        edges = 10.0 ** (np.arange(first, last + 2) / data.BINS_PER_DECADE)
        ax.stairs(shares, edges, color=color, linestyle=style, linewidth=2, label=text)
    if not ax.get_legend_handles_labels()[0]:
        return None
    if ax.patches:  # else every token is exactly equal, and the legend says all there is to say
        ax.set_xscale("log")
        ax.set_yscale("log")
    label(ax, x="|d|, nats", y=f"share of tokens (per 1/{data.BINS_PER_DECADE} decade)")
    ax.legend(fontsize=FONT - 1, frameon=False, loc="lower left", bbox_to_anchor=(0, 1))
    return made


def plot_scatter(run: Run) -> Figure | None:
    """A and C against Z: the log-probs themselves, then the rest after subtracting Z, on one scale for both sides."""
    frame = data.triples(run, data.MAX_MARKS // 4)
    if not frame.height:
        return None
    made, axes = figure((3.3, 3.3), columns=2)
    z = frame["z"].to_numpy()
    size = 7 if frame.height < 2000 else 3
    sides = (("a", "A (rollout engine)", ROLLOUT_SIDE, "o"), ("c", "C (trainer)", TRAINER_SIDE, "D"))
    for i, (column, name, color, marker) in enumerate(sides):
        values = frame[column].to_numpy()
        style: dict[str, Any] = {"s": size, "color": color, "marker": marker, "alpha": 0.45, "linewidths": 0}
        top, bottom = axes[i], axes[2 + i]
        top.axline((0, 0), slope=1, color=INK, linewidth=0.8)
        top.scatter(z, values, **style)
        bottom.axhline(0, color=INK, linewidth=0.8)
        bottom.scatter(z, values - z, **style)
        rms = float(np.sqrt(np.mean((values - z) ** 2)))
        label(top, title=f"{name} against Z (exact)")
        label(bottom, x="Z, exact log-prob, nats", title=f"{name[0]} − Z, rms {rms:.2g} nats")
    label(axes[0], y="log-prob, nats")
    label(axes[2], y="difference, nats")
    return made


def plot_shares(run: Run) -> Figure | None:
    """Share of var(A - C) on each side, the covariance as a bar of its own, 95 % intervals clustered by sequence."""
    row = decompose(run, by_step=False).row(0, named=True)
    if row["share_rollout"] is None:
        return None
    bars = (
        ("rollout engine\nvar(A − Z)", "share_rollout", ROLLOUT_SIDE, None),
        ("trainer\nvar(Z − C)", "share_trainer", TRAINER_SIDE, "//"),
        ("covariance\n2 cov(A − Z, Z − C)", "share_covariance", COVARIANCE, ".."),
    )
    made, (ax,) = figure([2.9])
    for y, (_name, key, color, hatch) in enumerate(bars):
        error = Z95 * (row[f"se_{key}"] or 0.0)
        ax.barh(y, row[key], color=color, hatch=hatch, edgecolor="white", height=0.62)
        ax.errorbar(row[key], y, xerr=error, color=INK, capsize=4, linewidth=1.4)
        at = max(row[key] + error, 0.0)
        where: dict[str, Any] = {"xytext": (8, 0), "textcoords": "offset points", "va": "center"}
        ax.annotate(share(row[key]), (at, y), fontsize=FONT, color=INK, **where)
    ax.set_yticks(range(len(bars)), [bar[0] for bar in bars])
    ax.invert_yaxis()
    ax.axvline(0, color=INK, linewidth=0.8)
    ax.margins(x=0.14)
    ax.grid(False, axis="y")
    ax.xaxis.set_major_formatter(lambda value, _at: f"{100 * value:.0f} %")
    scope = f"{row['tokens']:,} tokens, {row['sequences']:,} sequences"
    label(ax, x="share of var(A − C); the three bars sum to 100 %", title=f"{scope}; whiskers: 95 % interval")
    return made


# Title, caption and drawer of every figure, in the order of the report.
REPORT: tuple[tuple[str, str, Drawer], ...] = (
    (
        "How large is the mismatch, step by step?",
        "A: rollout engine, C: trainer, Z: exact engine. Log axis. Open markers: steps that were replayed.",
        plot_timeline,
    ),
    (
        "How is it spread over tokens?",
        "Share of tokens by size of the difference. Tokens that are exactly equal have no place on a log axis: "
        "the legend counts them.",
        plot_distribution,
    ),
    (
        "Who agrees with the exact engine?",
        "Top: log-probs against the exact engine's. Bottom: the difference, on one scale for both sides.",
        plot_scatter,
    ),
    (
        "Which side does it come from?",
        "The identity A − C = (A − Z) + (Z − C) as shares of variance. The covariance belongs to neither side.",
        plot_shares,
    ),
)
