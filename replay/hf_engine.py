"""The trainer's own forward, imitated: plain transformers with the run's attention, padding, batches and logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from timscope.data import BadInput
from timscope.replay.replay_input import StepInput
from timscope.replay.scoring import Progress, Scores
from timscope.replay.trainer_layout import Emulation, Row

HF_VERSION = "transformers-emulation-1"


@contextmanager
def _attention(model: Any, name: str | None) -> Iterator[None]:
    before = model.config._attn_implementation
    if name is not None and name != before:
        try:
            model.set_attn_implementation(name)
        except (ImportError, ValueError) as error:
            said = str(error).splitlines()[0]
            raise BadInput(
                f"the attention {name} cannot be used here ({said}): give another with --attention"
            ) from error
    try:
        yield
    finally:
        if model.config._attn_implementation != before:
            model.set_attn_implementation(before)


def _fused_head(model: Any, how: Emulation, temperature: float) -> None:
    """TRL's head on this instance: model(..., labels=..., fused_lm_head=True) gives log-probs."""
    try:
        from trl.trainer.utils import add_fused_lm_head
    except ImportError as error:
        raise BadInput("TRL's fused head needs trl 1.16 or later: install it, or take --head plain") from error
    add_fused_lm_head(model, temperature, how.logits == "head-float32", ("log_probs", "entropy"))


class HfEngine:
    """A context around a model; `score` takes one step and its batches (see trainer_layout)."""

    def __init__(self, model: Any, how: Emulation, temperature: float = 1.0) -> None:
        self.model, self.how, self.temperature = model, how, temperature

    @contextmanager
    def installed(self) -> Iterator[HfEngine]:
        """The attention and, where it is TRL's, the head; the model as it was afterwards."""
        with _attention(self.model, self.how.attention):
            own = self.model.__dict__.get("forward")
            if self.how.head == "trl":
                _fused_head(self.model, self.how, self.temperature)
            try:
                yield self
            finally:
                if own is None:
                    self.model.__dict__.pop("forward", None)
                else:
                    self.model.forward = own

    def score(self, item: StepInput, batches: Sequence[Sequence[Row]], progress: Progress | None) -> list[Scores]:
        """Log-probability and entropy of every response token, in the order of the step's sequences."""
        results = [Scores(np.empty(0, np.float32), np.empty(0, np.float32))] * len(item.sequences)
        with torch.no_grad():
            for batch in batches:
                for row, scores in zip(batch, self._forward(item, batch), strict=True):
                    results[row.index] = scores
                if progress:
                    progress(sum(len(item.completions[row.index]) for row in batch))
        return results

    def _forward(self, item: StepInput, batch: Sequence[Row]) -> list[Scores]:
        model, rows = self.model, [item.prompts[r.index] + item.completions[r.index] for r in batch]
        width = max(r.left + len(row) + r.right for r, row in zip(batch, rows, strict=True))
        pad = model.config.pad_token_id
        ids = torch.full((len(rows), width), 0 if pad is None else pad)
        mask = torch.zeros(len(rows), width, dtype=torch.int64)
        for i, (r, row) in enumerate(zip(batch, rows, strict=True)):
            columns = slice(r.left, r.left + len(row))
            ids[i, columns], mask[i, columns] = torch.tensor(row), 1
        first = min(r.left + len(item.prompts[r.index]) for r in batch)  # column of the first response token
        ids, mask = ids.to(model.device), mask.to(model.device)
        auto = torch.autocast(model.device.type, torch.bfloat16) if self.how.autocast else nullcontext()
        with auto:
            logprob, entropy = (self._fused if self.how.head == "trl" else self._plain)(ids, mask, first)
        found = []
        for i, r in enumerate(batch):
            start = r.left + len(item.prompts[r.index]) - first
            columns = slice(start, start + len(item.completions[r.index]))
            found.append(Scores(*(x[i, columns].float().cpu().numpy() for x in (logprob, entropy))))
        return found

    def _fused(self, ids: Tensor, mask: Tensor, first: int) -> tuple[Tensor, Tensor]:
        labels = ids.masked_fill(mask == 0, -100)
        labels[:, :first] = -100
        out = self.model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
        keep = ids.shape[1] - first
        return out.log_probs[:, -keep:], out.entropy[:, -keep:]

    def _plain(self, ids: Tensor, mask: Tensor, first: int) -> tuple[Tensor, Tensor]:
        keep = ids.shape[1] - first + 1
        if self.how.logits == "head-float32":
            hidden = self.model.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state[:, -keep:]
            with torch.autocast(self.model.device.type, enabled=False):
                logits = hidden.float() @ self.model.lm_head.weight.float().t()
        else:
            forward = {"input_ids": ids, "attention_mask": mask, "use_cache": False, "logits_to_keep": keep}
            logits = self.model(**forward).logits
        logits = logits[:, :-1]
        if self.how.logits != "bfloat16":
            logits = logits.float()
        if self.temperature != 1.0:
            logits = logits / self.temperature
        every = torch.log_softmax(logits, -1)
        logprob = every.gather(-1, ids[:, first:, None])[..., 0]
        return logprob, -(every.exp() * every).sum(-1)
