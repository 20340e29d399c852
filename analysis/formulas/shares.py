"""The exact identity A - C = (A - Z) + (Z - C) and what share of its variance each term holds.

With x = A - Z (rollout engine against the exact witness) and y = Z - C (exact witness against the trainer): var(A - C)
= var x + var y + 2 cov(x, y). The covariance belongs to neither side, so it is reported on its own. For one figure a
side, `attributed_*` gives each side one covariance: (var x + cov) / var(A - C). If the three witnesses err
independently, with variances a, z, c, then cov(x, y) = -z, and the attributed shares are exactly a / (a + c) and c / (a
+ c) (Grubbs 1948, the three-cornered hat of clock metrology). The exact witness's own noise z = -cov is then visible
too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from timscope.analysis.formulas.selection import FloatArray


@dataclass(frozen=True)
class SequenceMoments:
    """Sums over the tokens of each sequence, all of shape [M]. SQL delivers the same sums."""

    n: FloatArray
    x: FloatArray
    y: FloatArray
    xx: FloatArray
    yy: FloatArray
    xy: FloatArray


@dataclass(frozen=True)
class Shares:
    """Variances in nats^2, shares as fractions, `se_*` clustered by sequence (delta method; NaN for one sequence)."""

    var_rollout: float
    var_trainer: float
    covariance: float
    var_total: float
    share_rollout: float  # var x / var(A - C)
    share_trainer: float  # var y / var(A - C)
    share_covariance: float  # 2 cov / var(A - C); the three sum to 1
    attributed_rollout: float  # (var x + cov) / var(A - C)
    attributed_trainer: float  # (var y + cov) / var(A - C); the two sum to 1
    se_share_rollout: float
    se_share_trainer: float
    se_share_covariance: float
    se_attributed: float  # the same for both sides, as they sum to 1
    mean_rollout: float
    mean_trainer: float
    se_mean_rollout: float
    se_mean_trainer: float


def sequence_moments(x: npt.ArrayLike, y: npt.ArrayLike, sequence: npt.ArrayLike) -> SequenceMoments:
    """Per-sequence sums of x, y and their products from per-token arrays [N]; sequence ids are any integers."""
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    index = np.unique(np.asarray(sequence), return_inverse=True)[1].reshape(-1)
    values = (np.ones_like(a), a, b, a * a, b * b, a * b)
    return SequenceMoments(*(np.bincount(index, weights=v).astype(np.float64) for v in values))


def _se(influence: FloatArray) -> float:
    """Standard error from per-sequence influences that sum to 0."""
    m = influence.size
    return float(np.sqrt(m / (m - 1) * (influence**2).sum())) if m > 1 else float("nan")


def variance_shares(m: SequenceMoments, shift: tuple[float, float] = (0.0, 0.0)) -> Shares:
    """Variances (divided by N), shares and standard errors.

    `shift`: numbers already subtracted from x and y, put back into the means; a rough centre keeps all digits. All
    shares are NaN when A - C does not vary. Standard errors linearise each share in the per-sequence sums of squares,
    so tokens of one sequence may depend on each other in any way.
    """
    n = m.n.sum()
    if n == 0:
        return Shares(*[float("nan")] * 17)
    mx, my = m.x.sum() / n, m.y.sum() / n
    vx, vy, cxy = m.xx.sum() / n - mx * mx, m.yy.sum() / n - my * my, m.xy.sum() / n - mx * my
    total = vx + vy + 2 * cxy
    # Per sequence: sum_t (x - mx)^2 - var x, and so on; each sums to 0 over sequences.
    ux = m.xx - 2 * mx * m.x + m.n * (mx * mx - vx)
    uy = m.yy - 2 * my * m.y + m.n * (my * my - vy)
    uc = m.xy - mx * m.y - my * m.x + m.n * (mx * my - cxy)
    scale = 1 / total if total > 0 else float("nan")
    sx, sy, sc, ax = vx * scale, vy * scale, 2 * cxy * scale, (vx + cxy) * scale
    ut = ux + uy + 2 * uc
    return Shares(
        var_rollout=float(vx),
        var_trainer=float(vy),
        covariance=float(cxy),
        var_total=float(total),
        share_rollout=float(sx),
        share_trainer=float(sy),
        share_covariance=float(sc),
        attributed_rollout=float(ax),
        attributed_trainer=float((vy + cxy) * scale),
        se_share_rollout=_se((ux - sx * ut) * scale / n),
        se_share_trainer=_se((uy - sy * ut) * scale / n),
        se_share_covariance=_se((2 * uc - sc * ut) * scale / n),
        se_attributed=_se((ux + uc - ax * ut) * scale / n),
        mean_rollout=float(mx) + shift[0],
        mean_trainer=float(my) + shift[1],
        se_mean_rollout=_se((m.x - m.n * mx) / n),
        se_mean_trainer=_se((m.y - m.n * my) / n),
    )
