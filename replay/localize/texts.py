"""The sequences of a step as they are localised: token ids, and the padding that the trainer gave each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Text:
    """One sequence; `left` and `right` are the pads that the trainer put around it."""

    sequence: int
    prompt: list[int]
    completion: list[int]
    left: int = 0
    right: int = 0

    @property
    def ids(self) -> list[int]:
        """Prompt and completion."""
        return self.prompt + self.completion

    @property
    def width(self) -> int:
        """Columns of its row in the trainer's batch."""
        return self.left + len(self.prompt) + len(self.completion) + self.right
