"""Runs for the tests of this room, written through the real writer, and the comparison of figures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from timscope.analysis.formulas import Pair, pair, summarise
from timscope.data import Manifest, ReplayManifest, ReplayWriter, Run, RunWriter, open_run

Array = np.ndarray[Any, Any]

# Figures that are differences of large numbers: their error is relative to the terms, not to the result.
_SIGNED = {
    "k1": "mean_abs",
    "log_ppl_diff": "log_ppl_abs_diff",
    "log_ppl_diff_max": "log_ppl_abs_diff",
    "log_ppl_diff_min": "log_ppl_abs_diff",
}


def write_run(
    path: Path,
    columns: dict[str, Array],
    *,
    exact: Array | None = None,
    sequences: dict[int, dict[str, Any]] | None = None,
    steps: dict[int, dict[str, Any]] | None = None,
    **manifest: Any,
) -> Path:
    """Write token columns (with `step`, `sequence`; `position` is made up) and perhaps a replay holding `exact`.

    Masked entries of masked arrays become NULL; NaN and infinities stay.
    """
    step, sequence = columns["step"], columns["sequence"]
    position = np.zeros(len(step), np.int32)
    for key in {(int(s), int(q)) for s, q in zip(step, sequence, strict=True)}:
        rows = (step == key[0]) & (sequence == key[1])
        position[rows] = 7 + np.arange(rows.sum())
    with RunWriter(path, Manifest(**manifest), strict=True) as writer:
        for s in np.unique(step):
            rows = step == s
            part = {k: v[rows] for k, v in columns.items() if k != "step"}
            writer.put("tokens", int(s), {**part, "position": position[rows]})
            ids = np.unique(sequence[rows])
            writer.put("sequences", int(s), {"sequence": ids, "rank": 0 * ids, **(sequences or {}).get(int(s), {})})
            writer.put("steps", int(s), (steps or {}).get(int(s), {"loss": [0.0]}))
            writer.complete(int(s))
    if exact is not None:
        replay = ReplayWriter(path, ReplayManifest(name="exact", engine="exact"))
        for s in np.unique(step):
            rows = (step == s) & ~np.ma.getmaskarray(exact)
            if rows.any():
                part = {"sequence": sequence[rows], "position": position[rows]}
                replay.put(int(s), {**part, "exact_logprob": np.ma.getdata(exact)[rows]})
                replay.complete(int(s))
        replay.write_certificate({"exact": True})
    return path


def random_columns(
    rng: np.random.Generator, *, steps: int = 3, sequences: int = 6, length: int = 30, scale: float = 0.05
) -> dict[str, Array]:
    """Ragged sequences with a heavy-tailed difference of about `scale` nats, a few masked tokens, float32."""
    rows: list[tuple[int, int]] = []
    for step in range(steps):
        for sequence in range(sequences):
            rows += [(step, sequence)] * int(rng.integers(1, length + 1))
    n = len(rows)
    left = -rng.exponential(1.5, n)
    return {
        "step": np.array([r[0] for r in rows]),
        "sequence": np.array([r[1] for r in rows]),
        "mask": rng.random(n) < 0.9,
        "rollout_logprob": left.astype(np.float32),
        "old_logprob": np.minimum(left + scale * rng.standard_t(3, n), 0).astype(np.float32),
    }


def categorical_run(
    rng: np.random.Generator, *, sequences: int, length: int, noise: float, temperature: float = 1.0
) -> dict[str, Array]:
    """Tokens drawn from a softmax at `temperature`; `right` is the same model with logit noise, at the same
    temperature.

    The left column is raw, that is without the temperature: true log-probs at temperature 1, and otherwise not those of
    the distribution that was sampled, which breaks E[w] = 1.
    """
    n = sequences * length
    logits = rng.normal(0, 2.0, (n, 50))

    def log_softmax(x: Array) -> Array:
        x = x - x.max(1, keepdims=True)
        return np.asarray(x - np.log(np.exp(x).sum(1, keepdims=True)))

    left = log_softmax(logits)
    right = log_softmax((logits + rng.normal(0, noise, logits.shape)) / temperature)
    token = (np.exp(log_softmax(logits / temperature)).cumsum(1) > rng.random((n, 1))).argmax(1)
    rows = np.arange(n)
    return {
        "step": np.zeros(n, int),
        "sequence": np.repeat(np.arange(sequences), length),
        "mask": np.ones(n, bool),
        "rollout_logprob": left[rows, token].astype(np.float32),
        "old_logprob": right[rows, token].astype(np.float32),
    }


def reference(run: Run, left: str, right: str, step: int | None = None) -> dict[str, float]:
    """`summarise` over the run's own tokens."""
    return summarise(as_pair(run, left, right, step))


def as_pair(run: Run, left: str, right: str, step: int | None = None) -> Pair:
    """The pair of columns as `formulas` sees it; the cluster is (step, sequence)."""
    tokens = run.tokens(None if step is None else [step])
    cluster = tokens["step"].to_numpy().astype(np.int64) * 1_000_000 + tokens["sequence"].to_numpy()
    mask = tokens["mask"].fill_null(False).to_numpy()
    return pair(tokens[left].to_numpy(), tokens[right].to_numpy(), mask, cluster)


def assert_same(found: dict[str, Any], expected: dict[str, Any], rel: float = 1e-9) -> None:
    """Every figure of `expected`, None and NaN meaning "not defined", to `rel`; signed means as their terms."""
    for name, want in expected.items():
        got = found[name]
        if want is None or (isinstance(want, float) and math.isnan(want)):
            assert got is None or math.isnan(got), (name, got, want)
            continue
        assert got is not None, (name, want)
        slack = rel * abs(expected.get(_SIGNED.get(name, ""), 0) or 0)
        if name.startswith("chi2_"):
            slack = rel * max(1.0, abs(want)) * 1e-3
        assert math.isclose(got, want, rel_tol=rel, abs_tol=slack), (name, got, want)


def opened(path: Path) -> Run:
    """open_run, for one-line tests."""
    return open_run(path)
