"""Rules 2 and 4: non-finite values, storage type."""

from __future__ import annotations

from typing import Any

from timscope.analysis.check.facts import Declared
from timscope.analysis.check.report import ROWS, Rule
from timscope.analysis.check.values import Values
from timscope.analysis.check.widths import widest
from timscope.analysis.columns import LOSS, ROLLOUT, TRAINER
from timscope.analysis.findings import nats, percent

_PAIR = (ROLLOUT, TRAINER, LOSS)


def non_finite(values: Values, declared: Declared, notes: list[dict[str, Any]]) -> Rule:
    """Missing, NaN, -inf and +inf in the loss, kept apart. -inf of t under truncation is the edge of the support."""
    if not values.there:
        return Rule("non-finite", None, "needs log-probs: rollout_logprob and old_logprob are nowhere recorded")
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


def storage_dtype(values: Values, mean_abs: float | None) -> Rule:
    """Log-probs that a narrower type than float32 holds exactly. Above its floor the mismatch can still be read."""
    columns = {c: w for c, w in values.widths.items() if w.n}
    enough = {c: w for c, w in columns.items() if w.n > 200}
    if not enough:
        most = max((w.n for w in columns.values()), default=0)
        return Rule("storage-dtype", None, f"needs 201 log-probs below -0.008, has {most}", {"values": most})
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
