"""The verdict in plain words: short lines for people who have not read the dictionary of metrics."""

from __future__ import annotations

from typing import Any

from timscope.analysis.columns import ROLLOUT, TRAINER
from timscope.analysis.findings import Cause, nats, percent, share
from timscope.data import Run

# From this share of tokens on, a side counts as reproduced.
REPRODUCED = 0.99
# Fewer sequences give a standard error of E[w] that cannot carry a verdict.
MIN_SEQUENCES = 8

_REMEDY = {
    ROLLOUT: "record it (TRL: use_vllm=True with vllm_importance_sampling_correction; other engines: ask for logprobs)",
    TRAINER: "record it (TRL computes old log-probs when importance sampling correction is on)",
    "mask": "no token is marked as in the loss; record the loss mask",
}


def missing(columns: tuple[str, ...], row: dict[str, Any]) -> list[str]:
    """Why nothing can be compared, and what to record."""
    if columns == (ROLLOUT, TRAINER) and row["missing_left"] + row["missing_right"] and not row["tokens"]:
        return [
            f"Not comparable: no token in the loss has both {ROLLOUT} and {TRAINER}, finite: "
            "check that the two cover the same rows."
        ]
    return [f"Not comparable: the run has no {name}: {_REMEDY[name]}." for name in columns]


def fault(cause: Cause) -> list[str]:
    """A proved fault of the old log-probs."""
    evidence = cause.evidence
    if cause.kind == "zero-filled-old":
        return [
            f"Not comparable: {TRAINER} is exactly 0.0 on every token of {evidence['number_of_steps']} step(s) "
            f"({evidence['tokens']:,} tokens) where the rollout's mean is {evidence['mean_rollout_logprob']:.3g}.",
            "The trainer's log-probs were filled in, not measured: record the recomputed ones, or leave them missing.",
        ]
    sure = "" if cause.confidence > 0.5 else " (or both engines agree exactly: set loss_mode in the manifest to tell)"
    text = [
        f"Not comparable: {TRAINER} copies {ROLLOUT} bit for bit on all {evidence['tokens']:,} tokens{sure}.",
        "In bypass mode old is set to the rollout's value: their difference is 0 by construction and measures nothing.",
        "Record the trainer's own log-probs of the rollout (one forward before the update) to see the mismatch.",
    ]
    if evidence["loss_equals_rollout"] is not None:
        equal = percent(evidence["loss_equals_rollout"])
        text.append(f"The log-prob inside the loss equals the rollout's on {equal} of tokens.")
    return text


def invalid_weights(m: dict[str, Any]) -> list[str]:
    """E[w] is not 1: a fault of the data."""
    z = m["mean_weight_z"]
    sure = "" if z is None else f" (z = {z:.1f}, clustered over {m['sequences']:,} sequences)"
    return [
        f"Not comparable: the mean weight exp(C - A) is {m['mean_weight']:.4g}, not 1{sure}; "
        "true log-probs of the sampled tokens cannot do that.",
        f"The size, mean |A - C| = {nats(m['mean_abs'])} nats, is therefore a fault of the data, not of the numerics.",
        "Look at temperature, top-p/top-k and raw or processed log-probs on both sides, at shifts by one token and at "
        "placeholder values; or the rollouts were filtered before they were recorded.",
        "Importance corrections (TIS, rejection) are not legitimate on such data: fix it first.",
    ]


def lines(
    run: Run, verdict: str, m: dict[str, Any], parts: dict[str, Any], causes: list[Cause], floor: float
) -> list[str]:
    """All lines of a comparable run; the first one is the verdict."""
    text = [_headline(verdict, m, parts, floor)]
    text.append(
        f"Mean |A - C| is {nats(m['mean_abs'])} nats a token, the largest {nats(m['max_abs'])}, k3 {nats(m['k3'])}, "
        f"over {m['tokens']:,} tokens of {m['sequences']:,} sequences in {m['steps']:,} steps "
        f"({_engine(run.manifest.rollout)} against {_engine(run.manifest.trainer)})."
    )
    text += _sides(parts, verdict)
    text += [_cause(cause) for cause in causes]
    if verdict != "clean":
        text.append(_weights(m))
    text.append(_mode(run.manifest.algorithm.loss_mode, verdict == "clean"))
    text += _framework(m.get("framework") or {})
    if not parts and verdict != "clean":
        text.append(f"Next: timscope replay {run.path}, then diagnose again; only a third witness can name the side.")
    return text


def _engine(engine: Any) -> str:
    return " ".join(str(part) for part in (engine.name, engine.dtype) if part) or "unnamed engine"


def _headline(verdict: str, m: dict[str, Any], parts: dict[str, Any], floor: float) -> str:
    if verdict == "clean":
        return (
            f"Clean: mean |A - C| is {nats(m['mean_abs'])} nats, below the noise floor of {nats(floor)} "
            "(fp32 engines of one model differ by 5e-6, bf16 ones by 3e-2)."
        )
    lead = "Stale weights" if verdict == "staleness" else "Training-inference mismatch"
    if not parts:
        return f"{lead}: present, side unknown, as this run has no exact replay."
    side = parts["side"]
    if side == "not resolvable":
        return f"{lead}: present, but its side cannot be resolved: {parts['why']}."
    if side == "both":
        return f"{lead}: it comes from both sides, the rollout engine and the trainer."
    return f"{lead}: it comes from the {side}."


def _sides(parts: dict[str, Any], verdict: str) -> list[str]:
    if not parts or parts["attributed_rollout"] is None:
        return []
    low, high = parts["attributed_rollout_ci95"] or (None, None)
    scope = f"{parts['tokens']:,} tokens of {len(parts['steps'])} replayed step(s)"
    proof = {True: "certified bitwise", False: "NOT certified"}.get(parts["certified"], "no certificate")
    text = [
        f"Shares of var(A - C) on {scope}: rollout engine {share(parts['share_rollout'])}, trainer "
        f"{share(parts['share_trainer'])}, covariance {share(parts['share_covariance'])}; with the covariance "
        f"split evenly the rollout engine holds {share(parts['attributed_rollout'])} "
        f"(95 % interval {share(low)} to {share(high)}). Witness: exact replay, {proof}.",
        f"Rollout engine against exact: mean {nats(parts['mean_abs_rollout'])} nats; trainer against exact: mean "
        f"{nats(parts['mean_abs_trainer'])} nats.",
    ]
    equal, close = percent(parts["exact_equals_trainer"]), percent(parts["exact_close_to_trainer"])
    rest = "" if verdict == "clean" else "; so the rest is the rollout engine"
    if parts["exact_close_to_trainer"] >= REPRODUCED:
        text.append(
            f"The trainer's log-probs were reproduced: bit for bit on {equal} of tokens, within 1e-5 on {close}{rest}."
        )
    elif parts["rollout_equals_exact"] >= REPRODUCED:
        same = percent(parts["rollout_equals_exact"])
        text.append(f"The rollout's log-probs were reproduced bit for bit on {same} of tokens; the trainer is left.")
    return text


def _cause(cause: Cause) -> str:
    e = cause.evidence
    if cause.kind == "stale-weights":
        fresh = e["mean_abs_fresh"]
        compared = "with nothing at lag 0 to compare: a guess" if fresh is None else f"against {nats(fresh)} at lag 0"
        return (
            f"{e['lagging_tokens']:,} tokens were sampled up to {e['max_lag']} version(s) before the trained weights: "
            f"mean |A - C| {nats(e['mean_abs_lagging'])} {compared}."
        )
    if cause.kind == "non-finite":
        counts = ", ".join(f"{n:,} {name.replace(':', ' ')}" for name, n in e["counts"].items())
        return f"Non-finite log-probs, left out of every figure: {counts}; the first at {_where(e['first'])}."
    return f"{TRAINER} copies {ROLLOUT} bit for bit in {e['number_of_steps']} step(s): those steps measure nothing."


def _where(rows: list[dict[str, Any]]) -> str:
    return ", ".join(f"{key} {rows[0][key]}" for key in ("step", "sequence", "position"))


def _weights(m: dict[str, Any]) -> str:
    z = m["mean_weight_z"]
    if z is None:
        return "Whether the mean weight is 1 could not be tested: fewer than two sequences."
    text = f"Mean weight exp(C - A) is {m['mean_weight']:.6g} (z = {z:.1f} from 1, clustered by sequence): "
    if m["sequences"] < MIN_SEQUENCES:
        return text + "too few sequences to tell a fault of the data from chance."
    return text + "as with true log-probs of what was sampled, so importance corrections are legitimate."


def _mode(mode: str, clean: bool) -> str:
    if clean:
        return f"Loss mode {mode}: this rests on |A - C| of every token, not on k1 or k3, which clear nothing alone."
    if mode == "bypass":
        return "Loss mode bypass: k1 and k3 of the loss's own ratio mix mismatch with policy drift; they clear nothing."
    if mode == "recompute":
        return (
            "Loss mode recompute: a small k1 or k3 does not clear this run; in a published run both hid the mismatch "
            "for about 700 steps while the reward fell (arXiv 2605.14220)."
        )
    return "Loss mode unknown: k1 and k3 clear nothing here; what they mean depends on how old was made."


def _framework(check: dict[str, Any]) -> list[str]:
    if not check:
        return []
    worst = max(check["mean_gap"], check["max_gap"])
    if worst <= 1e-3:
        return [f"TRL's own logged mean and max agree on {check['steps']} step(s) (largest relative gap {worst:.1g})."]
    return [
        f"TRL's own logged {check['name']} differs from the recorded tokens by up to {percent(worst)} "
        f"(mean: step {check['mean_gap_step']}, max: step {check['max_gap_step']}); "
        "several generation batches a log call can do that."
    ]
