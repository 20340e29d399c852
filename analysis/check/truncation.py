"""Rules 10 to 12: a log-prob divided by T after the softmax, and truncation (top-p, top-k, min-p)."""

from __future__ import annotations

import math

from timscope.analysis.check.facts import Declared
from timscope.analysis.check.report import Rule
from timscope.analysis.check.sampling import (
    CLEARER,
    MIN_EXPLAINED,
    MIN_SLOPE,
    MIN_Z,
    declared_inverse,
    scaled,
    too_few,
    truncated,
    unit_of,
)
from timscope.analysis.check.semantics import Semantics
from timscope.analysis.findings import percent


def divided(s: Semantics, declared: Declared) -> Rule:
    """Rule 10: a log-prob divided by T after the softmax, which leaves nothing normalised."""
    name = "logprob-divided-by-temperature"
    if not s.enough:
        return too_few(name, s)
    evidence = s.figures("scale", "scale_z", "explained_scale", "angle", "explained_h", "linear", "positive")
    one_signed = s.positive is not None and (s.positive < 0.1 or s.positive > 0.9)
    inverse = declared_inverse(s.scale or 0.0, declared)
    if scaled(s) and s.scale and s.scale > 0 and one_signed and (inverse or unit_of(s) is None):
        evidence["T_hat"] = 1 / s.scale
        return Rule(name, False, f"r = t / {1 / s.scale:.3f}: divided after the softmax, t is raw", evidence)
    c = _entropy_alone(s, declared) if one_signed else None
    if c is not None:
        evidence["T_hat"] = 1 / (1 - c)
        said = f"r - t = {c:+.3f} H: r was divided by T = {1 / (1 - c):.3f} after the softmax, t is at T"
        return Rule(name, False, said, evidence)
    if s.angle is None and not (s.rms is not None and s.rms < 1e-6):
        return Rule(name, None, "needs the column entropy", {"missing": ["entropy"]})
    return Rule(name, True, "r is no multiple of t, and r - t none of the entropy", evidence)


def _entropy_alone(s: Semantics, declared: Declared) -> float | None:
    """c of y = c H where H alone explains y; None where it does not, or where truncation explains it as well."""
    if s.b is None or s.z_b is None or s.angle is None or abs(s.angle) < 75:
        return None
    c = s.b[1]
    if abs(c) < MIN_SLOPE or c >= 1 or abs(s.z_b[1]) < MIN_Z:
        return None
    if (s.explained_h or 0.0) < max(MIN_EXPLAINED, CLEARER * (s.explained_both or 0.0)):
        return None
    if c < 0:
        return c
    # T > 1 raises r as truncation does. Declared, or a straight line in H, which truncation is not.
    t = declared.temperature
    if t is not None and t > 1:
        return c if abs((1 - c) * t - 1) < 0.1 else None
    straight = (s.linear or 0.0) > 0.97 and (s.explained_h or 0.0) > 0.97
    return c if straight and not declared.truncates else None


def truncation(s: Semantics, declared: Declared, other: Rule) -> tuple[Rule, Rule]:
    """Rules 11 and 12: top-p is bounded by -log(top_p), top-k and min-p are not. `other`: rule 10, which goes first."""
    names = ("top-p-renormalisation", "top-k-renormalisation")
    if not s.enough:
        return too_few(names[0], s), too_few(names[1], s)
    evidence = s.figures("mean_weight", "weight_z", "positive", "zeros", "quantiles", "plateau", "rise")
    evidence["declared"] = declared.sampling()
    if not truncated(s) or scaled(s) or other.passed is False:
        said = "nothing was cut off"
        if s.mean_weight is not None and s.weight_z is not None:
            said += f": E[w] = {s.mean_weight:.4f}, z = {s.weight_z:+.1f}"
        return Rule(names[0], True, said, evidence), Rule(names[1], True, said, evidence)
    kept = math.exp(-s.plateau) if s.plateau is not None else None
    evidence["kept_mass_where_flat"] = kept
    top_p = (declared.top_p or 1.0) < 1.0
    unbounded = (declared.top_k or 0) > 0 or (declared.min_p or 0.0) > 0.0
    # Undeclared, or both declared: a nucleus holds the same mass wherever the distribution is flat.
    bounded = top_p if top_p != unbounded else (s.rise is None or s.rise < 1.5)
    said = f"E[w] = {s.mean_weight:.3f} (z = {s.weight_z:.0f}), r > t on {percent(s.positive)} of uncertain tokens"
    if bounded:
        p = f"kept mass about {kept:.2f}" if kept is not None else "bounded"
        return (
            Rule(names[0], False, f"{said}: {p}", evidence),
            Rule(names[1], True, "the cut is bounded: top-p", evidence),
        )
    return (
        Rule(names[0], True, "the cut is not bounded: top-k or min-p", evidence),
        Rule(names[1], False, f"{said}, growing with entropy", evidence),
    )
