"""The lossless difference of two versions of a tensor's bytes, small where few bits changed.

An optimizer step moves a weight by a few units in its last places, so the XOR with the version before has zeros in the
bytes of sign and exponent. Laid plane by plane (all highest bytes, then the next) instead of element by element those
zeros form long runs, which zstd turns into almost nothing. Done a mebibyte at a time: it stays in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

CHUNK = 1 << 20  # bytes of a tensor in one frame; part of the format
_CODEC = pa.Codec("zstd", compression_level=1)  # level 3 was three times slower and no smaller


def frames(new: Bytes, old: Bytes, itemsize: int) -> Iterator[bytes]:
    """The difference of two equally long byte arrays, a frame a chunk; an empty frame says that nothing changed."""
    for start in range(0, new.size, CHUNK):
        difference = new[start : start + CHUNK] ^ old[start : start + CHUNK]
        if not difference.any():
            yield b""
            continue
        planes = np.ascontiguousarray(difference.reshape(-1, itemsize).T)
        yield _CODEC.compress(planes.reshape(-1).data, asbytes=True)


def apply_frame(frame: bytes | memoryview, target: Bytes, itemsize: int) -> None:
    """Turn one chunk of the old bytes into the new ones, in place. ValueError where the frame is damaged."""
    if not len(frame):
        return
    try:
        planes = _CODEC.decompress(pa.py_buffer(frame), decompressed_size=target.size)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"a frame cannot be decompressed: {error}") from error
    split = np.frombuffer(planes, np.uint8).reshape(itemsize, -1)
    difference = np.empty((split.shape[1], itemsize), np.uint8)
    for place in range(itemsize):  # five times as fast as a transposing copy
        difference[:, place] = split[place]
    target ^= difference.reshape(-1)
