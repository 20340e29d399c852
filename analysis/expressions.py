"""SQL text for the scalar functions that DuckDB lacks, with the formulas' own cut-offs, so both agree to 1e-9."""

from __future__ import annotations

from timscope.analysis.formulas.divergences import SERIES_BELOW
from timscope.analysis.formulas.selection import CLAMP


def _series(x: str, first: int) -> str:
    """1 + x/first (1 + x/(first+1) (1 + ... x/8)), the tail of the exponential series."""
    text = f"(1 + {x} / 8)"
    for n in range(7, first - 1, -1):
        text = f"(1 + {x} / {n} * {text})"
    return text


def clamped(x: str) -> str:
    """x clipped to +-20, the frameworks' convention."""
    return f"least(greatest({x}, {-CLAMP}), {CLAMP})"


def expm1(x: str) -> str:
    """e^x - 1 without cancellation; inf where it overflows. `x` is a DOUBLE column or a parenthesised expression."""
    return f"CASE WHEN abs({x}) < {SERIES_BELOW} THEN {x} * {_series(x, 2)} ELSE exp({x}) - 1 END"


def excess_exp(x: str) -> str:
    """e^x - x - 1 without cancellation: `formulas.excess_exp`."""
    return f"CASE WHEN abs({x}) < {SERIES_BELOW} THEN {x} * {x} / 2 * {_series(x, 3)} ELSE exp({x}) - {x} - 1 END"


def defined(x: str) -> str:
    """NULL in place of NaN: 0/0 and inf/inf mean "not defined" here, and missing is NULL."""
    return f"CASE WHEN isnan({x}) THEN NULL ELSE {x} END"
