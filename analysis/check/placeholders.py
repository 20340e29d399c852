"""Rule 3: constants that stand in for a log-prob that nobody measured."""

from __future__ import annotations

import math
from typing import Any

from timscope.analysis.check.facts import Declared
from timscope.analysis.check.plan import NEVER
from timscope.analysis.check.report import ROWS, Rule
from timscope.analysis.check.structure import Violations
from timscope.analysis.check.values import Values
from timscope.analysis.check.widths import widest
from timscope.analysis.columns import ROLLOUT

SURE, NOISE = -0.05, 0.5  # nats


def zero_limit(declared: Declared) -> float:
    """t (nats) below which an exact 0.0 of r is a placeholder.

    0.0 means "certain". Without truncation that needs p within float32 of 1. A nucleus of one token is certain too: its
    kept mass is at least top_p (min_p has no such bound: a fifth is taken; half where the manifest is silent), and t
    may be off by the ordinary mismatch. A low temperature sharpens: r is exactly 0 where the best logit leads by
    16.6 T, which at T = 1 is a t of about -exp(-16.6 T) times a few rivals.
    """
    limit = SURE
    if declared.rollout_mode == "raw":
        return limit
    if declared.top_k == 1 or declared.temperature == 0.0:
        return -math.inf
    if declared.truncates is None:
        limit = math.log(0.5) - NOISE
    if (declared.top_p or 1.0) < 1.0:
        limit = min(limit, math.log(max(declared.top_p or 1.0, 1e-6)) - NOISE)
    if (declared.min_p or 0.0) > 0.0:
        limit = min(limit, math.log(0.2) - NOISE)
    if declared.temperature is not None and declared.temperature < 0.3:
        limit = min(limit, -math.log1p(20.0 * math.exp(-16.6 * declared.temperature)))
    return limit


def placeholder(values: Values, notes: list[dict[str, Any]], unpaired: str | None) -> Rule:
    """Exact constants that stand for "no log-prob": 0.0, 1.0, -1, -100, -9999, -1e9, log(1 / vocabulary).

    `unpaired`: a rule that says that r and t are not of the same tokens. Behind it a few zeros are no finding: they may
    be tokens that one side is sure of.
    """
    if not values.there[ROLLOUT] and not notes:
        return Rule("placeholder", None, "rollout_logprob is missing")
    right = values.plan.trainer
    told = _told(values)
    if unpaired and not notes and told and _few(told, values):
        return Rule("placeholder", None, f"fix {unpaired} first")
    inside = {key: v for key, v in told.items() if key[2] != "outside the loss"}
    evidence: dict[str, Any] = {
        "zero_counts_where_other_side_below": values.plan.zero_limit,
        "found": [
            {"column": column, "value": value, "place": place, "tokens": v.count}
            for (column, value, place), v in sorted(values.placeholders.items(), key=lambda kv: -kv[1].count)
        ],
        "rows": [row for v in (inside or told).values() for row in v.rows[:1]][:ROWS],
    }
    if notes:
        evidence["imported"] = notes[:ROWS]
    if not told and not notes:
        if right is None:
            return Rule("placeholder", None, "an exact 0.0 cannot be judged: old_logprob is missing", evidence)
        return Rule("placeholder", True, "no constant stands in for a log-prob", evidence)
    if not told:
        return Rule("placeholder", False, str(notes[0]["detail"]), evidence)
    told = inside or told
    by_value: dict[tuple[str, float], dict[str, int]] = {}
    for (column, value, place), v in told.items():
        by_value.setdefault((column, value), {})[place] = v.count
    said = "; ".join(
        f"{column} is exactly {value:g} on {sum(places.values()):,} tokens ({', '.join(places)})"
        for (column, value), places in list(by_value.items())[:2]
    )
    return Rule("placeholder", False, said, evidence, "error" if inside else "warn")


def _told(values: Values) -> dict[tuple[str, float, str], Violations]:
    """What was found, save what there is without any fault."""
    return {
        (column, value, place): v
        for (column, value, place), v in values.placeholders.items()
        if not _nucleus(values, column, value) and not values.chance(column, value)
    }


def _few(told: dict[tuple[str, float, str], Violations], values: Values) -> bool:
    """Whether these are few tokens, and of constants that are told by the other side alone."""
    tokens = sum(v.count for v in told.values())
    return tokens <= 1e-3 * values.there[ROLLOUT] and not any(value in NEVER for _, value, _ in told)


def _nucleus(values: Values, column: str, value: float) -> bool:
    """Whether zeros of r are tokens that were sure: nuclei of one token, of which a few lie below any limit by noise,
    or log-probs of two decimals or one, where 0.0 is anything above -0.005 or -0.05."""
    if column != ROLLOUT or value != 0.0:
        return False
    below = sum(v.count for (c, x, _), v in values.placeholders.items() if c == ROLLOUT and x == 0.0)
    width = widest(values.widths[column]) if column in values.widths else None
    if width and width[0] in ("1-decimal", "2-decimal"):
        return below <= 0.5 * values.zeros
    return values.plan.zero_limit < SURE and below <= 0.01 * values.zeros
