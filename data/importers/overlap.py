"""Rows that a logger wrote twice because its buffer had not moved on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any


def signature(record: Mapping[str, Any]) -> bytes:
    """A digest of a row without its step."""
    fields = {name: value for name, value in record.items() if name != "step"}
    encoded = json.dumps(fields, sort_keys=True, default=str).encode("utf-8", "backslashreplace")
    return hashlib.blake2b(encoded, digest_size=16).digest()


def overlap(before: Sequence[bytes], after: Sequence[bytes]) -> int:
    """How many rows at the end of `before` are the first rows of `after`: the longest such run, in linear time."""
    joined: list[bytes | None] = [*after, None, *before]
    longest = [0] * len(joined)  # of each prefix: its longest proper border (Knuth, Morris and Pratt)
    for i in range(1, len(joined)):
        border = longest[i - 1]
        while border and joined[i] != joined[border]:
            border = longest[border - 1]
        longest[i] = border + (joined[i] == joined[border])
    return longest[-1] if after and before else 0
