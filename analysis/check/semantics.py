"""How r - t depends on t and on the entropy H: the figures behind the rules on units, temperature and truncation.

All of these faults make y = r - t a simple function of the token and of its context:

- one side at temperature T, the other raw:   y = b (t + H')         b = T - 1 or 1/T - 1
- other units, or a log-prob divided by T:    y = (a - 1) t          a = 1/ln 2, 1/T, ...
- divided by T, against t at T:               y = c H'               c = 1 - 1/T
- truncation (top-p, top-k, min-p):           y = -log(kept mass)    >= 0, a function of the context alone

with H' a Renyi entropy that follows H closely. So one regression of y on (t, H) tells them apart by its direction:
equal coefficients, t alone, H alone. r is used in place of t as instrument: the token was sampled from r, so what t
adds to it is noise that is correlated with t and not with r, and plain least squares would find a temperature in every
large mismatch.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from timscope.analysis.check.curves import shape
from timscope.analysis.check.regressions import MAX_Z, MIN_SEQUENCES, MIN_TOKENS, both, scale, unit_mean
from timscope.analysis.check.sums import Table
from timscope.analysis.check.thinned import Thinned


@dataclass(frozen=True)
class Semantics:
    """Figures of one scan; nats. None where there is too little to say.

    `b`, `z_b`: coefficients of y on (t, H) and their clustered z. `angle`: direction of b in degrees, -90 to 90: 0 is t
    alone, 45 is t + H, 90 is H alone. `explained_*`: share of sum y^2 that t + H, t or H explains alone. `slope`: y on
    t inside narrow bins of H, which is b of a temperature whatever its entropy. `scale`: r = scale t. `positive`: share
    of y > 0 among the tokens with the higher half of H (of -r where H is missing). `linear`: R^2 of y = c H over bins.
    `plateau`: mean y in the top quarter of bins; `rise`: that against the bins in the middle. `mean_weight` and
    `weight_z`: E[w] and its z, which is too much beyond `weight_bound`; `capped_*`: the same of min(w, 4).
    """

    tokens: int
    sequences: int
    mean_abs: float | None
    rms: float | None
    mean_weight: float | None = None
    weight_se: float | None = None
    weight_z: float | None = None
    weight_bound: float = MAX_Z
    capped_weight: float | None = None
    capped_z: float | None = None
    scale: float | None = None
    scale_z: float | None = None
    explained_scale: float | None = None
    scale_gain: float | None = None
    b: tuple[float, float] | None = None
    z_b: tuple[float, float] | None = None
    angle: float | None = None
    explained_both: float | None = None
    explained_t: float | None = None
    explained_h: float | None = None
    slope: float | None = None
    positive: float | None = None
    linear: float | None = None
    plateau: float | None = None
    rise: float | None = None
    zeros: float | None = None
    quantiles: tuple[float, ...] | None = None

    @property
    def enough(self) -> bool:
        """Whether the statistical rules may be asked at all."""
        return self.tokens >= MIN_TOKENS and self.sequences >= MIN_SEQUENCES

    def figures(self, *names: str) -> dict[str, Any]:
        """Some figures by name, for evidence."""
        every = asdict(self)
        return {name: every[name] for name in names}


def semantics(table: Table, sample: Thinned, reuse: float) -> Semantics:
    """Every figure. `reuse`: how often a rollout appears on average, copies being no further evidence."""
    n = table.total("n")
    if not n:
        return Semantics(0, 0, None, None)
    square = table.total("rr") - 2 * table.total("rt") + table.total("tt")
    found: dict[str, Any] = {
        "tokens": int(n),
        "sequences": table.sequences,
        "mean_abs": table.total("abs") / n,
        "rms": math.sqrt(max(square, 0.0) / n),
    }
    if found["tokens"] >= MIN_TOKENS and table.sequences >= MIN_SEQUENCES:
        found |= unit_mean(table, reuse) | scale(table, reuse) | both(table, reuse) | shape(sample)
    return Semantics(**found)
