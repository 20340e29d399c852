"""A digest of a set of weights, the same whichever process, framework or file the tensors came from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence

Item = tuple[str, str, Sequence[int], bytes | memoryview]


def digest_tensors(items: Iterable[Item]) -> str:
    """SHA-256 over (name, dtype, shape, bytes) of every tensor, in order of name.

    Items must come sorted by name, so that a 70B model can be digested one tensor at a time. `dtype` is the plain name
    ("float32", "bfloat16"); bytes are the contiguous little-endian values. A tied output head is one tensor: leave out
    the second name. Raises ValueError when names are out of order or repeated.
    """
    sha, last = hashlib.sha256(), ""
    for name, dtype, shape, data in items:
        if name <= last:
            raise ValueError(f"tensor {name!r} comes after {last!r}: pass each name once, sorted")
        last = name
        header = json.dumps([name, dtype, [int(n) for n in shape]])
        sha.update(header.encode() + b"\n")
        sha.update(data)
    return "sha256:" + sha.hexdigest()
