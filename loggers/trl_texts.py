"""Texts of token ids, decoded on the writer's thread.

With a tokenizer of its own: a fast tokenizer that one thread reads while another changes its padding or truncation
raises in the thread that changes it, and that would be the trainer's.
"""

from __future__ import annotations

import copy
from typing import Any

from timscope.loggers.arrays import Array


class Texts:
    """Decodes with a copy of `tokenizer`."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = copy.deepcopy(tokenizer)

    def decode(self, ids: Array, mask: Array) -> list[str]:
        """The text of each row of `ids` (B, n) where `mask` is true, special tokens included. Equal rows (the prompts
        of a group) are decoded once."""
        rows = [row[keep] for row, keep in zip(ids, mask, strict=True)]
        keys = [row.tobytes() for row in rows]
        unique = {key: row for key, row in zip(keys, rows, strict=True)}
        texts = dict(zip(unique, self._batch([row.tolist() for row in unique.values()]), strict=True))
        return [texts[key] for key in keys]

    def _batch(self, rows: list[list[int]]) -> list[str]:
        backend: Any = getattr(self._tokenizer, "backend_tokenizer", None)
        # The backend decodes a batch without the GIL; transformers goes row by row with it.
        if hasattr(backend, "decode_batch") and not getattr(self._tokenizer, "clean_up_tokenization_spaces", True):
            return list(backend.decode_batch(rows, skip_special_tokens=False))
        return list(self._tokenizer.batch_decode(rows))
