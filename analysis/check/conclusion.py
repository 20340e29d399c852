"""From rules and figures to the answer: comparable or not, why in one line, and what to do next."""

from __future__ import annotations

from typing import Any

from timscope.analysis.check.dump import Notes
from timscope.analysis.check.remedies import FIX_IN_ORDER, NEXT, NO_COLUMNS, NO_PAIR, NOT_A_LOGPROB
from timscope.analysis.check.repair import Judged
from timscope.analysis.check.report import ROWS, Rule
from timscope.analysis.check.source import Source
from timscope.analysis.check.validity import invalid, testable
from timscope.analysis.columns import ROLLOUT
from timscope.analysis.findings import nats
from timscope.data import Run


def conclude(run: Run, rules: list[Rule], pair: Source, judged: Judged) -> tuple[bool, str, str]:
    """Whether the run is comparable, why, and what to do."""
    s = judged.figures
    blocking = [rule.name for rule in rules if rule.blocks]
    if blocking:
        return False, ", ".join(blocking), FIX_IN_ORDER
    if pair.missing:
        cannot = run.manifest.imported.cannot.get("diagnose") if run.manifest.imported else None
        said = f"nothing to compare, {_listed(pair.missing)} missing"
        return False, said + (f" ({cannot})" if cannot else ""), NO_COLUMNS
    if not s.tokens:
        return False, f"no token in the loss has both {ROLLOUT} and {pair.trainer}", NO_PAIR
    if (wrong := invalid(s)) is not None:
        return False, wrong, NOT_A_LOGPROB
    said = f"{s.tokens:,} tokens of {s.sequences:,} sequences, mean |d| {nats(s.mean_abs)} nats"
    if s.mean_weight is not None and s.weight_z is not None:
        said += f", E[w] {s.mean_weight:.4f} where 1 is sound (z {s.weight_z:+.1f})"
    warned = [rule.name for rule in rules if rule.passed is False]
    if any(rule.name == "old-copies-rollout" and rule.passed is None for rule in rules):
        warned.append("old-copies-rollout (not decided)")
    return True, said + (f"; mind {', '.join(warned)}" if warned else ""), NEXT.format(run=run.path)


def context(pair: Source, judged: Judged, notes: Notes, known: tuple[str, ...]) -> dict[str, Any]:
    """The figures that belong to no single rule. `known`: kinds of notes that some rule reads."""
    s = judged.figures
    weight = {
        "mean": s.mean_weight,
        "se": s.weight_se,
        "z": s.weight_z,
        "largest_sound_z": s.weight_bound,
        "capped_mean": s.capped_weight,
        "capped_z": s.capped_z,
        "valid": invalid(s) is None if testable(s) else None,
    }
    return {
        "left": ROLLOUT,
        "right": pair.trainer,
        "missing": list(pair.missing),
        "tokens": s.tokens,
        "sequences": s.sequences,
        "mean_abs": s.mean_abs,
        "rms": s.rms,
        "mean_weight": weight,
        "undone": judged.undone,
        "imported": {kind: entries[:ROWS] for kind, entries in notes.items() if kind not in known},
    }


def _listed(names: tuple[str, ...]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
