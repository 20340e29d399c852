"""Rules 2 to 4: non-finite values, placeholders, storage type."""

from __future__ import annotations

import math
from typing import Any

from timscope.analysis.check.facts import Declared
from timscope.analysis.check.report import ROWS, Rule
from timscope.analysis.check.values import Values, widest
from timscope.analysis.columns import LOSS, ROLLOUT, TRAINER
from timscope.analysis.findings import nats, percent

_PAIR = (ROLLOUT, TRAINER, LOSS)
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


def non_finite(values: Values, declared: Declared, notes: list[dict[str, Any]]) -> Rule:
    """Missing, NaN, -inf and +inf in the loss, kept apart. -inf of t under truncation is the edge of the support."""
    if not values.there:
        return Rule("non-finite", None, "no log-probs: rollout_logprob and old_logprob are NULL everywhere")
    edge = {
        (column, kind): v
        for (column, kind), v in values.wrong.items()
        if kind == "-inf" and column != ROLLOUT and declared.truncates
    }
    wrong = {key: v for key, v in values.wrong.items() if key not in edge}
    evidence: dict[str, Any] = {
        "missing": {c: values.missing[c] for c in _PAIR if values.there[c] and values.missing[c]},
        "counts": {f"{column}:{kind}": v.count for (column, kind), v in wrong.items()},
        "support_boundary": {column: v.count for (column, _), v in edge.items()},
        "outside_loss": {f"{c}:{kind}": n for (c, kind), n in values.outside.items() if n},
    }
    if notes:
        evidence["imported"] = notes[:ROWS]
    if not wrong and not notes:
        lost = ", ".join(f"{n:,} without {c}" for c, n in evidence["missing"].items())
        said = f"every log-prob in the loss is finite{'; ' + lost if lost else ''}"
        if edge:
            said += f"; {sum(v.count for v in edge.values()):,} -inf at the edge of the truncated support, not averaged"
        return Rule("non-finite", True, said, evidence)
    rows = sorted((row for v in wrong.values() for row in v.rows), key=lambda r: (r["step"], r["sequence"]))
    said = ", ".join(f"{v.count:,} {kind} in {column}" for (column, kind), v in wrong.items())
    serious = bool(notes) or any(column in _PAIR or column == "advantage" for column, _ in wrong)
    return Rule(
        "non-finite",
        False,
        said or "; ".join(str(n["detail"]) for n in notes[:1]),
        {**evidence, "rows": rows[:ROWS]},
        "error" if serious else "warn",
    )


def placeholder(values: Values, notes: list[dict[str, Any]]) -> Rule:
    """Exact constants that stand for "no log-prob": 0.0, 1.0, -1, -100, -9999, -1e9, log(1 / vocabulary)."""
    if not values.there[ROLLOUT] and not notes:
        return Rule("placeholder", None, "rollout_logprob is missing")
    right = values.plan.trainer
    told = {key: v for key, v in values.placeholders.items() if not _nucleus(values, key)}
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


def _nucleus(values: Values, key: tuple[str, float, str]) -> bool:
    """Whether zeros of r are nuclei of one token: under truncation a few of those lie below any limit by noise."""
    column, value, _ = key
    if column != ROLLOUT or value != 0.0 or values.plan.zero_limit >= SURE:
        return False
    below = sum(v.count for (c, x, _), v in values.placeholders.items() if c == ROLLOUT and x == 0.0)
    return below <= 0.01 * values.zeros


def storage_dtype(values: Values, mean_abs: float | None) -> Rule:
    """Log-probs that a narrower type than float32 holds exactly. Above its floor the mismatch can still be read."""
    columns = {c: w for c, w in values.widths.items() if w.n}
    enough = {c: w for c, w in columns.items() if w.n > 200}
    if not enough:
        most = max((w.n for w in columns.values()), default=0)
        return Rule("storage-dtype", None, f"too few values below {-1 / 128:.3g}: {most} of 201", {"values": most})
    evidence: dict[str, Any] = {
        c: {"values": w.n, "bf16_share": w.bf16 / w.n, "fp16_share": w.fp16 / w.n} for c, w in enough.items()
    }
    narrow = {c: found for c, w in enough.items() if (found := widest(w)) is not None}
    if not narrow:
        top = max(max(w.bf16, w.fp16) / w.n for w in enough.values())
        return Rule("storage-dtype", True, f"full float32: a narrower type fits {percent(top)} at most", evidence)
    for column, (name, floor, more) in narrow.items():
        evidence[column] |= {"stored_as": name, "rounding_nats": floor, **more}
    floor = max(f for _, f, _ in narrow.values())
    said = ", ".join(f"{c} holds {name} values" for c, (name, _, _) in narrow.items())
    if mean_abs is not None and mean_abs <= floor:
        return Rule(
            "storage-dtype", False, f"{said}: mean |d| {nats(mean_abs)} is below their rounding {nats(floor)}", evidence
        )
    return Rule(
        "storage-dtype", False, f"{said}: differences below about {nats(floor)} nats are rounding", evidence, "warn"
    )
