"""What a diagnosis is made of: a verdict, the causes that were really tested, and lines that a human can read."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Verdict = Literal["clean", "not-comparable", "tim", "staleness", "unexplained"]


@dataclass(frozen=True)
class Cause:
    """A named cause. `kind` is a slug of the fault list, `confidence` 0 to 1, `value` the figure that decided."""

    kind: str
    confidence: float
    value: float | None
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Diagnosis:
    """The answer about one run.

    `side` is "rollout engine", "trainer", "both", "not resolvable", or None where no replay was compared. `missing`
    names the columns whose absence made the run not comparable; a front door may treat that as bad input.
    """

    verdict: Verdict
    reason: str
    side: str | None = None
    causes: list[Cause] = field(default_factory=list)
    decomposition: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    missing: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A dict for json.dumps: verdict, reason, side, causes, decomposition, metrics, summary. inf becomes "inf"."""
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "side": self.side,
            "causes": [plain(asdict(cause)) for cause in self.causes],
            "decomposition": plain(self.decomposition),
            "metrics": plain(self.metrics),
            "summary": list(self.lines),
        }


def plain(value: Any) -> Any:
    """Strict JSON has no NaN and no infinity: NaN becomes null, an infinity the string "inf" or "-inf"."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def nats(x: float | None) -> str:
    """A size in nats with three digits."""
    return "undefined" if x is None else f"{x:.3g}"


def percent(x: float | None) -> str:
    """A share with enough digits, up to four, to tell 99.9998 % from 100 %."""
    if x is None:
        return "undefined"
    if 0 < abs(x) < 5e-7:
        return "< 0.0001 %" if x > 0 else "> -0.0001 %"
    rest = min(abs(1 - x), abs(x))
    digits = 1 if rest >= 1e-3 or rest == 0 else min(4, 1 - math.floor(math.log10(rest * 100)))
    return f"{100 * x:.{digits}f} %"


def share(x: float | None) -> str:
    """A share of variance, to a tenth of a per cent: its interval is never finer."""
    return "undefined" if x is None else f"{100 * x + 0.0:.1f} %".replace("-0.0 %", "0.0 %")
