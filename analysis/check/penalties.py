"""Rule 13: penalties, logit bias, grammar. d depends on whether the id occurred before, or on the id itself.

An effect must be large as well as certain. On the bundled run repeated tokens differ by 0.009 nats with z = -4, and
one id by 0.07 with z = -15, although nothing is wrong: bf16 errors are not the same for every id. So 5 standard errors
count only beyond half (groups) or three times (ids) the difference's own spread. And a bias acts on its id wherever it
occurs: copies of one context (a rollout used again, a policy that always writes the same) are one observation of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy.stats import norm

from timscope.analysis.check.facts import Declared
from timscope.analysis.check.ids import ByToken
from timscope.analysis.check.report import Rule
from timscope.analysis.check.sampling import too_few
from timscope.analysis.check.semantics import Semantics
from timscope.analysis.check.sums import Table

NAME = "penalties"
MIN_SD, MIN_GROUP, MIN_EFFECT = 5.0, 50, 0.05
MIN_ID = 20  # occurrences of one id


def penalties(
    s: Semantics,
    table: Table,
    ids: ByToken,
    declared: Declared,
    reuse: float,
    contexts: Callable[[list[int]], Mapping[int, int]],
) -> Rule:
    """The rule. Evidence: the groups' difference and z, and the ids whose mean stands out.

    `contexts`: in how many different contexts these ids occur; asked of suspects alone.
    """
    if not s.enough or s.rms is None:
        return too_few(NAME, s)
    evidence: dict[str, Any] = {"repeated": _repeated(table, reuse), "ids": [], "declared": declared.sampling()}
    spread = s.rms
    biased = _biased(ids, contexts)
    evidence["ids"] = biased[:5]
    evidence["ids_standing_out"] = len(biased)
    group = evidence["repeated"]
    z, effect = group.get("z"), group.get("difference")
    repeats = z is not None and abs(z) > MIN_SD and abs(effect) > max(MIN_EFFECT, 0.5 * spread)
    # A biased id is repeated more often than others: ids come first, groups are judged again without them.
    if biased:
        first = biased[0]
        said = f"id {first['token_id']}: r - t is {first['mean']:+.3f} on {first['tokens']:,} tokens"
        more = f", and {len(biased) - 1} more ids" if len(biased) > 1 else ""
        return Rule(NAME, False, f"{said}{more}: a bias on one side", evidence)
    if repeats:
        said = f"repeated ids: r - t is {effect:+.3f} against new ones (z = {z:+.0f}): a repetition penalty on one side"
        return Rule(NAME, False, said, evidence)
    if not len(ids.columns()[0]):
        return Rule(NAME, None, "needs the column token_id", {"missing": ["token_id"]})
    told = "too few repeated ids to tell" if effect is None else f"repeated ids differ by {effect:+.4f} nats"
    return Rule(NAME, True, f"{told}; no id stands out", evidence)


def _repeated(table: Table, reuse: float) -> dict[str, Any]:
    """Mean y of repeated tokens minus that of new ones, and its z clustered by sequence."""
    n1, y1 = table["seen_n"], table["seen_y"]
    n0, y0 = table["n"] - n1, table["r"] - table["t"] - y1
    if n1.sum() < MIN_GROUP or n0.sum() < MIN_GROUP:
        return {"repeated_tokens": int(n1.sum()), "new_tokens": int(n0.sum())}
    mean1, mean0 = y1.sum() / n1.sum(), y0.sum() / n0.sum()
    u = (y1 - mean1 * n1) / n1.sum() - (y0 - mean0 * n0) / n0.sum()
    error = math.sqrt(float((u * u).sum()) * reuse)
    difference = float(mean1 - mean0)
    z = difference / error if error > 0 else 0.0 if difference == 0 else math.copysign(math.inf, difference)
    return {
        "difference": difference,
        "z": z,
        "mean_repeated": float(mean1),
        "mean_new": float(mean0),
        "repeated_tokens": int(n1.sum()),
        "new_tokens": int(n0.sum()),
    }


def _biased(ids: ByToken, contexts: Callable[[list[int]], Mapping[int, int]]) -> list[dict[str, Any]]:
    """Ids whose mean y stands out, the most frequent first. |z| must pass 5 and the Bonferroni bound at 1e-4."""
    token, n, mean, sd = ids.columns()
    enough = n >= MIN_ID
    tested = int(enough.sum())
    if tested < 2:
        return []
    bound = max(MIN_SD, float(norm.isf(1e-4 / tested / 2)))
    centre = float(np.median(mean[enough]))
    # The spread of all other ids: one biased id that is frequent widens everyone's.
    square = n * (mean**2 + sd**2)
    spread = np.sqrt(np.maximum(square.sum() - square, 0.0) / np.maximum(n.sum() - n, 1))
    # A handful of equal values has no spread of its own: it gets a tenth of the others'.
    error = np.maximum(sd, 0.1 * spread)
    with np.errstate(divide="ignore", invalid="ignore"):  # equal columns have no spread at all
        z = np.where(mean == centre, 0.0, (mean - centre) / error)  # of one observation
    out = enough & (np.abs(z) * np.sqrt(n) > bound)
    out &= np.abs(mean - centre) > np.maximum(MIN_EFFECT, 3.0 * spread)
    suspects = np.flatnonzero(out)[np.argsort(-n[out])]
    different = contexts([int(token[i]) for i in suspects]) if len(suspects) else {}
    found = []
    for i in suspects:
        k = min(different.get(int(token[i]), 0), int(n[i]))
        entry = {"token_id": int(token[i]), "mean": float(mean[i]), "tokens": int(n[i]), "contexts": k}
        if k >= MIN_ID and abs(z[i]) * math.sqrt(k) > bound:
            found.append({**entry, "z": float(z[i] * math.sqrt(k))})
    return found
