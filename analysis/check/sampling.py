"""Rules 5 and 9: units, and temperature on one side; and what the other rules on sampling share.

Thresholds: abs(b) > 0.02 and z > 10 are those of the fault list. On top of them a rule must explain a share of the
difference, because ordinary noise has such slopes too: on the bundled run (bf16 engine against fp32 trainer) b is
-0.011 with z = -7 although nothing is wrong, and explains 5 % of it. A temperature of 0.95 explains 36 % there.
"""

from __future__ import annotations

import math

from timscope.analysis.check.facts import Declared
from timscope.analysis.check.regressions import MIN_SEQUENCES, MIN_TOKENS
from timscope.analysis.check.report import Rule
from timscope.analysis.check.semantics import Semantics
from timscope.analysis.findings import percent

MIN_SLOPE, MIN_Z, MIN_EXPLAINED = 0.02, 10.0, 0.1
CLEARER = 1.3  # a rule's model must explain this much more than its rivals
UNITS = {
    "log2 (rollout side)": 1 / math.log(2),
    "log10 (rollout side)": 1 / math.log(10),
    "log2 (trainer side)": math.log(2),
    "log10 (trainer side)": math.log(10),
    "negated (one side)": -1.0,
}


def too_few(name: str, s: Semantics) -> Rule:
    """The answer where there are not enough compared tokens or sequences."""
    return Rule(
        name,
        None,
        f"needs {MIN_TOKENS} tokens of {MIN_SEQUENCES} sequences, has {s.tokens:,} of {s.sequences}",
        {"tokens": s.tokens, "sequences": s.sequences},
    )


def unit_of(s: Semantics) -> tuple[str, float] | None:
    """The unit whose factor the scale of r is, to 2 %: its name and factor; None where there is none."""
    if s.scale is None:
        return None
    name = min(UNITS, key=lambda u: abs(s.scale / UNITS[u] - 1) if s.scale else math.inf)
    return (name, UNITS[name]) if abs(s.scale / UNITS[name] - 1) < 0.02 else None


def scaled(s: Semantics) -> bool:
    """Whether r is a multiple of t: t alone explains y, and better than t + H or H do."""
    if s.scale is None or s.scale_z is None or s.explained_scale is None:
        return False
    if abs(s.scale - 1) < MIN_SLOPE or abs(s.scale_z) < MIN_Z:
        return False
    if s.angle is None:  # no entropy: only what leaves nothing else is believed
        return s.explained_scale > 0.8
    rivals = max(s.explained_both or 0.0, MIN_EXPLAINED)
    return abs(s.angle) < 15 and (s.explained_t or 0.0) > CLEARER * rivals


def declared_inverse(scale: float, declared: Declared) -> bool:
    """Whether 1 / scale is the declared temperature, to 1.5 %."""
    t = declared.temperature
    return t is not None and t > 0 and t != 1.0 and abs(scale * t - 1) < 0.015


def units(s: Semantics, declared: Declared) -> Rule:
    """Rule 5: r = a t with a of another unit or sign."""
    if not s.enough:
        return too_few("units", s)
    evidence = s.figures("scale", "scale_z", "explained_scale", "scale_gain", "angle")
    unit = unit_of(s)
    if unit is None or not scaled(s) or (s.scale_gain or 0.0) < 4 or declared_inverse(s.scale or 0.0, declared):
        a = "r = t" if s.scale is None else f"r = {s.scale:.4f} t"
        return Rule("units", True, f"both in nats: {a}", evidence)
    evidence |= {"unit": unit[0], "factor": unit[1]}
    return Rule("units", False, f"r = {s.scale:.4f} t: one side is {unit[0]}, factor {unit[1]:.4f}", evidence)


def truncated(s: Semantics) -> bool:
    """E[w] clearly below 1 and y > 0 on most tokens with choice: probability was cut off and handed to the rest."""
    if s.mean_weight is None or s.weight_z is None or s.positive is None:
        return False
    return s.weight_z < -MIN_Z and s.mean_weight < 0.995 and s.positive > 0.65


def temperature(s: Semantics, declared: Declared) -> Rule:
    """Rule 9: one side at temperature T, the other not."""
    name = "temperature-one-sided"
    if not s.enough:
        return too_few(name, s)
    if s.b is None or s.z_b is None or s.angle is None:
        if s.rms is not None and s.rms < 1e-6:
            return Rule(name, True, "no difference to explain", s.figures("rms"))
        return Rule(name, None, "needs the column entropy", {"missing": ["entropy"]})
    slope = s.slope if s.slope is not None else s.b[0]
    evidence = s.figures("b", "z_b", "angle", "slope", "explained_both", "explained_t", "explained_h")
    rivals = max(s.explained_t or 0.0, s.explained_h or 0.0)
    fits = 30 < s.angle < 62 and (s.explained_both or 0.0) > max(MIN_EXPLAINED, CLEARER * rivals)
    strong = abs(slope) > MIN_SLOPE and min(map(abs, s.z_b)) > MIN_Z / 2 and max(map(abs, s.z_b)) > MIN_Z
    if not (fits and strong) or truncated(s):
        share = percent(s.explained_both)
        said = f"slope {slope:+.4f} on t + entropy explains {share} of r - t: no temperature"
        return Rule(name, True, said, evidence)
    trainer_at, rollout_at = 1 + slope, 1 / (1 + slope) if slope > -1 else math.inf
    evidence |= {"T_hat_if_trainer_tempered": trainer_at, "T_hat_if_rollout_tempered": rollout_at}
    evidence["declared"] = {**declared.sampling(), "rollout_logprob": declared.rollout_temperature}
    t = declared.temperature
    if t is None or t == 1.0 or t <= 0:
        return Rule(
            name,
            False,
            f"T = {trainer_at:.3f} on the trainer's side alone, or {rollout_at:.3f} on the rollout's alone",
            evidence,
        )
    trainer = abs(trainer_at - t) <= abs(rollout_at - t)
    at, tempered, raw = (trainer_at, "old", "rollout") if trainer else (rollout_at, "rollout", "old")
    evidence |= {"T_hat": at, "tempered_side": tempered, "raw_side": raw, "temperature": t}
    said = f"T = {at:.3f} is on the {tempered} log-probs alone (declared {t:g}): the {raw} side is raw"
    return Rule(name, False, said, evidence)
