"""The curve of y = r - t over the entropy, and quantiles of y, from the thinned sample."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from timscope.analysis.check.pairs import Floats
from timscope.analysis.check.regressions import MIN_TOKENS
from timscope.analysis.check.thinned import Thinned


def shape(sample: Thinned) -> dict[str, Any]:
    """Quantiles of y, and y as a curve over H."""
    r, t, h, seen = sample.columns()
    y = r - t
    known = np.isfinite(h)
    with_h = bool(known.sum() >= MIN_TOKENS)
    x = np.where(known, h, np.nan) if with_h else -r
    keep = known if with_h else np.ones(len(r), bool)
    found: dict[str, Any] = {
        "quantiles": tuple(float(q) for q in np.quantile(y, (0.001, 0.01, 0.5, 0.99, 0.999))),
        "zeros": float((r == 0.0).mean()),
        "positive": float((y[keep & (x > np.median(x[keep]))] > 0).mean()) if keep.any() else None,
    }
    if not with_h:
        return found
    r, t, h, y, seen = r[keep], t[keep], h[keep], y[keep], seen[keep]
    found["slope"] = _slope(r[~seen], t[~seen], h[~seen], y[~seen])
    count, (mean_y, mean_h) = _bins(h, y, h)
    if len(count) >= 8:
        quarter = len(count) // 4
        c = float((count * mean_y * mean_h).sum() / max(float((count * mean_h**2).sum()), 1e-300))
        centre = float((count * mean_y).sum() / count.sum())
        spread = float((count * (mean_y - centre) ** 2).sum())
        middle = float(mean_y[2 * quarter : 2 * quarter + max(1, quarter // 2)].mean())
        top = float(mean_y[-quarter:].mean())
        found |= {
            "linear": 1 - float((count * (mean_y - c * mean_h) ** 2).sum()) / spread if spread > 0 else None,
            "plateau": top,
            "rise": top / middle if middle > 0 else math.inf,
        }
    return found


def _number(h: Floats) -> npt.NDArray[np.int64]:
    """Bin of each token: up to 32 bins of H with equal counts, each with 25 tokens or more."""
    bins = int(np.clip(len(h) // 25, 1, 32))
    edges = np.quantile(h, np.linspace(0, 1, bins + 1)[1:-1])
    return np.searchsorted(edges, h).astype(np.int64)


def _bins(h: Floats, *values: Floats) -> tuple[Floats, list[Floats]]:
    """Counts and means over bins of H."""
    number = _number(h)
    count = np.bincount(number).astype(np.float64)
    filled = count > 0
    return count[filled], [np.bincount(number, v)[filled] / count[filled] for v in values]


def _slope(r: Floats, t: Floats, h: Floats, y: Floats) -> float | None:
    """y on t with r as instrument, inside bins of H: the context is out of the way, whatever function of it acts."""
    if len(r) < MIN_TOKENS:
        return None
    number = _number(h)
    count = np.maximum(np.bincount(number), 1)

    def inside(v: Floats) -> Floats:
        return v - (np.bincount(number, v) / count)[number]

    z = inside(r)
    weight = float((z * inside(t)).sum())
    return float((z * inside(y)).sum()) / weight if weight else None
