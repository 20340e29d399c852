"""The regressions behind `semantics`, from sums per sequence alone, with errors clustered by sequence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student

from timscope.analysis.check.pairs import Floats
from timscope.analysis.check.sums import Table
from timscope.analysis.formulas.identity import CONSTANT

# |z| of E[w] = 1 beyond which r is no log-prob of the sampled token, where there are many sequences.
MAX_Z = 5.0
# Below this neither a clustered z nor a slope means much. |t| with 7 degrees of freedom passes 10 in 2 of 100,000.
MIN_SEQUENCES, MIN_TOKENS = 8, 100


def unit_mean(table: Table, reuse: float) -> dict[str, Any]:
    """E[w] as `formulas.identity` defines it, from the per-sequence sums of w - 1; the same of min(w, 4), and the |z|
    that is too much.

    Of few sequences a standard error is itself uncertain, and w has a heavy tail: in 400 simulated sound runs of 8
    sequences and a large mismatch |z| passed 5 in 1 of 100. So the bound is Student's at the same odds: 16 for 8
    sequences, 8 for 16, 6 for 40.
    """
    bound = float(student.isf(norm.sf(MAX_Z), max(table.sequences / reuse - 1, 1)))
    capped, _, capped_z = _mean(table, "capped", reuse)
    found = {"weight_bound": bound, "capped_weight": capped, "capped_z": capped_z}
    if not math.isfinite(table.total("excess")):
        return {**found, "mean_weight": math.inf}
    mean, se, z = _mean(table, "excess", reuse)
    return {**found, "mean_weight": mean, "weight_se": se, "weight_z": z}


def _mean(table: Table, name: str, reuse: float) -> tuple[float, float, float]:
    """1 + the mean of a column, its standard error and z."""
    s, n = table[name], table.total("n")
    se = float(s.std(ddof=1)) * math.sqrt(len(s) * reuse)
    small = se <= CONSTANT * abs(float(s.sum()))
    z = (0.0 if s.sum() == 0 else math.copysign(math.inf, float(s.sum()))) if small else float(s.sum()) / se
    return 1.0 + float(s.sum()) / n, se / n, z


def scale(table: Table, reuse: float) -> dict[str, Any]:
    """r = a t, with r as its own instrument: a = sum r^2 / sum r t."""
    rr, rt, tt = (table.total(name) for name in ("rr", "rt", "tt"))
    yy = rr - 2 * rt + tt
    # Equal columns leave rounding: nothing to explain.
    if rt == 0 or tt <= 0 or yy <= 1e-13 * rr:
        return {}
    a = rr / rt
    u = table["rr"] - a * table["rt"]
    se = math.sqrt(float((u * u).sum()) * reuse) / abs(rt)
    rest = rr - 2 * a * rt + a * a * tt
    return {
        "scale": a,
        "scale_z": (a - 1) / se if se > 0 else math.copysign(math.inf, a - 1),
        "explained_scale": (rt - tt) ** 2 / (tt * yy),
        "scale_gain": yy / rest if rest > 0 else math.inf,
    }


def both(table: Table, reuse: float) -> dict[str, Any]:
    """y on (t, H), over tokens whose id is new in the sequence and whose entropy is known."""
    if table.total("n1") < MIN_TOKENS or int((table["n1"] > 0).sum()) < MIN_SEQUENCES:
        return {}
    rr, rt, tt, r_h, t_h, h_h = (table[name] for name in ("rr1", "rt1", "tt1", "rH1", "tH1", "HH1"))
    zy = np.stack([rr - rt, r_h - t_h])
    zx = np.stack([np.stack([rt, r_h]), np.stack([t_h, h_h])])
    total = zx.sum(-1)
    yy = float((rr - 2 * rt + tt).sum())
    determinant = float(np.linalg.det(total))
    if yy <= 1e-13 * float(rr.sum()) or abs(determinant) <= 1e-9 * abs(total[0, 0] * total[1, 1]) or h_h.sum() <= 0:
        return {}
    b = np.linalg.solve(total, zy.sum(-1))
    rest = zy - np.einsum("ijs,j->is", zx, b)
    inverse = np.linalg.inv(total)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = b / np.sqrt(np.diag(inverse @ (rest @ rest.T) @ inverse.T) * reuse)
    sign = 1.0 if b[0] >= 0 else -1.0

    def explained(xy: Floats, xx: Floats) -> float:
        return float(xy.sum()) ** 2 / (float(xx.sum()) * yy) if xx.sum() > 0 else 0.0

    return {
        "b": (float(b[0]), float(b[1])),
        "z_b": (float(z[0]), float(z[1])),
        "angle": math.degrees(math.atan2(sign * b[1], sign * b[0])),
        "explained_both": explained(rt - tt + r_h - t_h, tt + 2 * t_h + h_h),
        "explained_t": explained(rt - tt, tt),
        "explained_h": explained(r_h - t_h, h_h),
    }
