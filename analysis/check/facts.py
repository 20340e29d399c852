"""What the manifest declares about the two log-probs, and what an importer found: the context of every rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from timscope.analysis.columns import ROLLOUT
from timscope.data import Manifest, Run

# Findings of importers under their own names, and the rule that each belongs to.
_RULE_OF = {
    "zero-filled-rollout": "placeholder",
    "missing-rank": "integrity",
    "missing-step": "truncated-dump",
    "broken-line": "truncated-dump",
}


@dataclass(frozen=True)
class Declared:
    """Sampling and log-prob semantics as the manifest has them; None where it says nothing."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None
    rollout_mode: str | None
    rollout_temperature: float | None
    trainer_temperature: float | None

    @property
    def truncates(self) -> bool | None:
        """Whether top-p, top-k or min-p cut the distribution; None where the manifest names none of them."""
        if self.top_p is None and self.top_k is None and self.min_p is None:
            return None
        return (self.top_p or 1.0) < 1.0 or (self.top_k or 0) > 0 or (self.min_p or 0.0) > 0.0

    def sampling(self) -> dict[str, Any]:
        """The declared sampling parameters, for evidence."""
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def declared(manifest: Manifest, trainer: str) -> Declared:
    """The declared semantics of `rollout_logprob` and of the trainer's column `trainer`."""
    s = manifest.sampling
    rollout, right = manifest.logprobs.get(ROLLOUT), manifest.logprobs.get(trainer)
    applied = rollout.temperature if rollout else None
    if rollout and applied is None:
        # Processed log-probs are those after temperature and truncation, whatever the temperature was.
        applied = s.temperature if rollout.mode == "processed" else 1.0 if rollout.mode == "raw" else None
    return Declared(
        temperature=s.temperature,
        top_p=s.top_p,
        top_k=s.top_k,
        min_p=s.min_p,
        repetition_penalty=s.repetition_penalty,
        rollout_mode=rollout.mode if rollout else None,
        rollout_temperature=applied,
        trainer_temperature=right.temperature if right else None,
    )


def vocabulary(manifest: Manifest) -> int | None:
    """Token ids are below this: the tokenizer's size with added tokens, or the model's where the first is unknown."""
    return manifest.tokenizer.vocab_size or manifest.model.vocab_size


def imported(run: Run) -> dict[str, list[dict[str, Any]]]:
    """What an importer noted, by the rule it belongs to; kinds that belong to none keep their own name."""
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in run.manifest.imported.findings if run.manifest.imported else []:
        entry = {"detail": finding.detail, "count": finding.count, **finding.evidence}
        found.setdefault(_RULE_OF.get(finding.kind, finding.kind), []).append(entry)
    return found
