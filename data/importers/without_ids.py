"""Token rows of dumps that have log-probs but no token ids: `token_id` is NULL, everything else is there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from timscope.data.importers.base import Part

_NONE = -1


def placeholder_ids(length: int) -> NDArray[np.int64]:
    """Stand-ins for unknown token ids, so that a row knows its length; `hide_placeholders` turns them into NULL."""
    return np.full(length, _NONE, np.int64)


def hide_placeholders(part: Part) -> Part:
    """The part with NULL for every placeholder id (no vocabulary has negative ids)."""
    tokens = part.tables.get("tokens")
    if tokens is not None and (tokens["token_id"] == _NONE).any():
        tokens["token_id"] = np.ma.masked_equal(tokens["token_id"], _NONE)
    return part
