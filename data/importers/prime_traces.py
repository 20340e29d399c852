"""prime-rl's episode traces: what the token export leaves out, found again by the token ids.

A trace is a tree of messages; each path from a root to a leaf is one training sample, and its token ids name it. From
the episode come the group, the policy versions that generated it, the reward, and why it stopped.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from timscope.data.importers.base import ROW_FAULTS, Findings
from timscope.data.importers.json_values import text
from timscope.data.importers.jsonl import Line, described, lines
from timscope.data.importers.numbers import number
from timscope.data.importers.row import Row
from timscope.data.importers.versions import note_mixed

# The batch that was trained on, then everything that was generated.
_SUBSETS = ("effective", "all")


@dataclass(frozen=True)
class Episode:
    """What a sample's trace says about it; None where the record does not have it."""

    uid: str | None
    group_id: str | None
    first_version: int | None
    last_version: int | None
    reward: float | None
    finish_reason: str | None


def key(token_ids: Any) -> bytes:
    """A digest of the ids, so that a step's traces take 16 bytes a sample in memory."""
    return hashlib.blake2b(np.asarray(token_ids, np.int64).tobytes(), digest_size=16).digest()


class StepTraces:
    """The traces of one step by the token ids of their samples."""

    def __init__(self, output: Path, step: int, findings: Findings) -> None:
        self._samples: dict[bytes, list[Episode]] = {}
        folder = output / "rollouts" / f"step_{step}" / "train"
        found = [folder / subset / "traces.jsonl" for subset in _SUBSETS]
        there = [path for path in found if path.is_file()][:1]
        self.known = bool(there)
        for path in there:
            for line in lines(path, findings):
                try:
                    self._add(line, findings)
                except ROW_FAULTS as error:
                    findings.note("integrity", "traces that cannot be read are not joined", place=line.place,
                                  error=described(error))  # fmt: skip

    def _add(self, line: Line, findings: Findings) -> None:
        record = line.data
        group = (record.get("group") or {}).get("id")
        policy = ((record.get("run") or {}).get("work") or {}).get("policy") or {}
        for trace in record.get("traces") or []:
            calls = {c["node"]: c for c in trace.get("calls") or [] if c.get("node") is not None}
            episode = Episode(
                uid=text(trace.get("id") or record.get("id")),
                group_id=text(group),
                first_version=_version(policy.get("start")),
                last_version=_version(policy.get("end")),
                reward=_reward(trace, findings, line.place),
                finish_reason=None,
            )
            for leaf, ids in _branches(trace.get("nodes") or []):
                reason = text((calls.get(leaf) or {}).get("finish_reason"))
                self._samples.setdefault(key(ids), []).append(replace(episode, finish_reason=reason))

    def tell(self, row: Row, token_ids: Any, findings: Findings) -> None:
        """Fill in what the traces know about a sample; of traces with equal ids only what they agree in."""
        if not self.known:
            return
        matches = self._samples.get(key(token_ids))
        if not matches:
            findings.note(
                "traces-unmatched", "samples whose token ids no trace of their step has: no group, version or reward",
                place=row.place,
            )  # fmt: skip
            return
        row.uid, row.group_id, row.reward, row.finish_reason = (
            _agreed(matches, name) for name in ("uid", "group_id", "reward", "finish_reason")
        )
        first, last = _agreed(matches, "first_version"), _agreed(matches, "last_version")
        row.weight_version = first if first == last else None
        if first is not None and last is not None and first != last:
            note_mixed(int(first), int(last), findings, row.place, row.extra)


def _version(value: Any) -> int | None:
    return None if value is None else int(value)


def _agreed(matches: list[Episode], name: str) -> Any:
    values = {getattr(m, name) for m in matches}
    return values.pop() if len(values) == 1 else None


def _reward(trace: dict[str, Any], findings: Findings, place: str) -> float | None:
    """The weighted sum of a trace's rewards; None where none was scored."""
    scored = [r for r in (trace.get("rewards") or {}).values() if r is not None]
    if not scored:
        return None
    terms = [(number(r.get("score"), findings, "rewards", place), r.get("weight", 1.0)) for r in scored]
    return None if any(score is None for score, _ in terms) else sum(float(s or 0.0) * float(w) for s, w in terms)


def _branches(nodes: list[dict[str, Any]]) -> list[tuple[int, list[int]]]:
    """(leaf, token ids from the root to it) of every leaf."""
    parents = {node.get("parent") for node in nodes}
    found = []
    for leaf in range(len(nodes)):
        if leaf in parents:
            continue
        path: list[int] = []
        at: int | None = leaf
        while at is not None and len(path) <= len(nodes):
            path.append(at)
            at = nodes[at].get("parent")
        found.append((leaf, [t for n in reversed(path) for t in nodes[n].get("token_ids") or []]))
    return found
