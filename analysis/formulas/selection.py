"""Which tokens count: the mask, missing values and non-finite values, decided once for every estimator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# verl, slime's mis.py and SkyRL clip log ratios to +-20 before exp; TRL and prime-rl do not.
CLAMP = 20.0


@dataclass(frozen=True)
class Pair:
    """Two witnesses on the tokens that count. All arrays have shape [N]; `sequence` numbers 0..M-1 without gaps."""

    left: FloatArray
    right: FloatArray
    sequence: IntArray
    missing_left: int
    missing_right: int
    nonfinite: int

    @property
    def d(self) -> FloatArray:
        """Log ratio right - left, nats, [N]."""
        return self.right - self.left

    @property
    def sequences(self) -> int:
        """M: sequences with at least one token that counts."""
        return int(self.sequence.max()) + 1 if self.sequence.size else 0

    def sums(self, values: FloatArray) -> FloatArray:
        """Sum of per-token values over each sequence: [N] -> [M]."""
        return np.bincount(self.sequence, weights=values, minlength=self.sequences).astype(np.float64)

    @property
    def lengths(self) -> FloatArray:
        """T_i: counted tokens of each sequence, [M]."""
        return self.sums(np.ones_like(self.left))


def pair(
    left: npt.ArrayLike,
    right: npt.ArrayLike,
    mask: npt.ArrayLike | None = None,
    sequence: npt.ArrayLike | None = None,
) -> Pair:
    """Keep the tokens that are in the loss and where both log-probs are there and finite.

    Shapes: all [N] with `sequence` ids of any integers, or all [B, T] (then the row is the sequence). NaN stands for
    missing, as polars and duckdb hand over NULL; infinities are counted in `nonfinite`. Values are widened to float64
    before any subtraction. Raises ValueError when shapes differ.
    """
    a, b = np.asarray(left, dtype=np.float64), np.asarray(right, dtype=np.float64)
    keep = np.ones(a.shape, dtype=bool) if mask is None else np.asarray(mask).astype(bool)
    if sequence is not None:
        ids = np.asarray(sequence, dtype=np.int64)
    elif a.ndim == 2:
        ids = np.broadcast_to(np.arange(a.shape[0])[:, None], a.shape)
    else:
        ids = np.zeros(a.shape, dtype=np.int64)
    if not a.shape == b.shape == keep.shape == ids.shape:
        raise ValueError(f"shapes differ: left {a.shape}, right {b.shape}, mask {keep.shape}, sequence {ids.shape}")
    a, b, ids = a[keep], b[keep], ids[keep]
    present = ~(np.isnan(a) | np.isnan(b))
    finite = np.isfinite(a) & np.isfinite(b)
    return Pair(
        left=a[finite],
        right=b[finite],
        sequence=np.unique(ids[finite], return_inverse=True)[1].reshape(-1).astype(np.int64),
        missing_left=int(np.isnan(a).sum()),
        missing_right=int(np.isnan(b).sum()),
        nonfinite=int((present & ~finite).sum()),
    )
