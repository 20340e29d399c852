"""How wide values really are: a column of float32 may hold what was bf16, fp16 or a few decimals before."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

# Smaller values of a float32 log-softmax lie on the lattice of their logits (2^-19 to 2^-20) and look rounded.
LARGE_ENOUGH = 2.0**-7
DECIMALS = (1, 2, 3, 4, 5)
_SAMPLE = 16_384  # values a chunk and column


@dataclass
class Widths:
    """Of one column: values looked at, how many bf16 and fp16 hold exactly, how many have so few decimals, sum |x|."""

    n: int = 0
    bf16: int = 0
    fp16: int = 0
    total: float = 0.0
    decimal: Counter[int] = field(default_factory=Counter)

    def add(self, x: npt.NDArray[np.float32]) -> None:
        """An even sample is enough for a share of 99 %."""
        x = x[:: max(1, len(x) // _SAMPLE)]
        with np.errstate(invalid="ignore", over="ignore"):
            x = x[(np.abs(x) > LARGE_ENOUGH) & np.isfinite(x)]
            self.n += len(x)
            self.bf16 += int(((x.view(np.uint32) & 0xFFFF) == 0).sum())
            self.fp16 += int((x.astype(np.float16).astype(np.float32) == x).sum())
        wide = x.astype(np.float64)
        self.total += float(np.abs(wide).sum())
        for digits in DECIMALS:
            scaled = wide * 10.0**digits
            # Half a unit in the last place of a float32 is what writing the decimals and reading them back leaves.
            near = np.abs(scaled - np.rint(scaled)) <= np.abs(scaled) * 2.0**-24 + 1e-12
            self.decimal[digits] += int(near.sum())


def widest(widths: Widths) -> tuple[str, float, dict[str, Any]] | None:
    """The narrow type that holds more than 99 % of a column's values, with its rounding error as a share of the value
    (or in nats for decimals), or None."""
    if widths.n <= 200:
        return None
    for name, count, floor in (("bf16", widths.bf16, 2.0**-9), ("fp16", widths.fp16, 2.0**-12)):
        if count > 0.99 * widths.n:
            return name, floor * widths.total / widths.n, {"share": count / widths.n, "relative_floor": floor}
    for digits in DECIMALS:
        if widths.decimal[digits] > 0.99 * widths.n:
            floor = 0.5 * 10.0**-digits
            return f"{digits}-decimal", floor, {"share": widths.decimal[digits] / widths.n}
    return None
