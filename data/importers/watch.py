"""What an importer's parts really hold, counted while they stream by: it gives the tier and what a run cannot serve."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from timscope.data.importers.base import Part, Tier
from timscope.data.importers.lag_test import LagTest

_COMMANDS = ("replay", "diagnose", "corrections", "calibrate", "localize")


class Watch:
    """Counts of values by column, over all parts. Missing values do not count."""

    def __init__(self) -> None:
        self.steps: set[int] = set()
        self.sequences = self.tokens = 0
        self.lags = LagTest()
        self._values: Counter[str] = Counter()
        self._texts = self._old_zero = self._both = self._equal = 0

    def add(self, part: Part) -> None:
        """Take a part."""
        self.steps.add(part.step)
        sequences, tokens = part.tables.get("sequences"), part.tables.get("tokens")
        if sequences is not None:
            self.sequences += len(sequences["sequence"])
            for name in ("prompt_ids", "advantage", "weight_version", "micro_batch", "prompt", "completion"):
                self._values[name] += sum(v is not None for v in sequences.get(name, ()))
        if tokens is not None:
            self.tokens += len(tokens["token_id"])
            for name, values in tokens.items():
                self._values[name] += len(values) - int(np.ma.getmaskarray(values).sum())
            self._compare(tokens)
            self.lags.add(tokens)

    def _compare(self, tokens: dict[str, Any]) -> None:
        old, rollout = tokens.get("old_logprob"), tokens.get("rollout_logprob")
        if old is None:
            return
        self._old_zero += int(np.count_nonzero(np.ma.compressed(np.ma.asarray(old)) == 0.0))
        if rollout is not None:
            there = ~(np.ma.getmaskarray(old) | np.ma.getmaskarray(rollout))
            a, b = (np.ma.getdata(v)[there].astype(np.float32) for v in (old, rollout))
            self._both += a.size
            self._equal += int(np.count_nonzero(a == b))

    def has(self, column: str) -> bool:
        """Whether any value of the column was there."""
        return self._values[column] > 0

    @property
    def zero_old(self) -> bool:
        """Whether every old log-prob is exactly 0.0."""
        return 0 < self._values["old_logprob"] == self._old_zero

    @property
    def copied_old(self) -> bool:
        """Whether every old log-prob equals the rollout's bit for bit: the run's loss bypasses the trainer's own."""
        return 0 < self._both == self._equal and not self.zero_old

    @property
    def tier(self) -> Tier:
        """See `Imported.tier`; decided by the columns that are really there."""
        if not self.tokens:
            return "T1" if self.sequences else "T0"
        # Rows of masks, advantages or lengths alone say no more about the engines than the texts do.
        if not self.has("token_id") and not self.has("rollout_logprob"):
            return "T1"
        trainer = self.has("loss_logprob") or (self.has("old_logprob") and not self.zero_old)
        if not (trainer and self.has("rollout_logprob") and self.has("advantage")):
            return "T2"
        return "T4" if self.has("weight_version") and self.has("micro_batch") else "T3"

    def cannot(self) -> dict[str, str]:
        """The commands that this run cannot serve, with the reason."""
        if not self.tokens:
            what = "texts and rewards, no token ids, and text does not give them back" if self.sequences else "metrics"
            return {command: f"the dump holds {what}" for command in _COMMANDS} | self._short()
        reasons: dict[str, str] = {}
        if not (self.has("prompt_ids") and self.has("token_id")):
            what = "response" if self.has("prompt_ids") else "prompt"
            reasons["replay"] = reasons["localize"] = (
                f"the dump holds no {what} token ids, so nothing can be scored again"
            )
        if not self.has("rollout_logprob"):
            reasons["diagnose"] = reasons["corrections"] = reasons["calibrate"] = "the dump holds no rollout log-probs"
        elif trainer := self._no_trainer():
            reasons["diagnose"] = reasons["corrections"] = reasons["calibrate"] = f"{trainer}: replay the run first"
        elif not self.has("advantage"):
            reasons["corrections"] = reasons["calibrate"] = "the dump holds no advantages"
        return reasons | self._short()

    def _short(self) -> dict[str, str]:
        return {"signals": "the dump holds one step alone"} if len(self.steps) == 1 else {}

    def _no_trainer(self) -> str | None:
        if self.has("loss_logprob"):
            return None
        if not self.has("old_logprob"):
            return "the dump holds no trainer log-probs"
        if self.zero_old:
            return "the dump's old log-probs are all 0.0, not a measurement"
        return "the dump's old log-probs are the rollout's own" if self.copied_old else None
