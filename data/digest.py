"""What proves that two sets of weights are the same, whichever process, framework or file the tensors came from.

Two of them. `digest_tensors` is SHA-256: nobody can forge it, and it needs every byte on the host. `fingerprint` is
a keyed linear hash with a mixing step on top: a GPU makes it at memory speed without waiting (loggers/weights.py), so
that every version of a run can have one; here is the same in numpy, bit for bit. It is no defence against forgery.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Item = tuple[str, str, Sequence[int], bytes | memoryview]
Words = NDArray[np.uint64]

LANES = 2
ROW_WORDS = 1 << 14  # 32-bit words in a row; a tensor's last row is padded with zeros
ROW_BYTES = 4 * ROW_WORDS
_ROWS_AT_ONCE = 16
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_HEAD = "lm_head.weight"


def digest_tensors(items: Iterable[Item]) -> str:
    """SHA-256 over (name, dtype, shape, bytes) of every tensor, in order of name.

    Items must come sorted by name, so that a 70B model can be digested one tensor at a time. `dtype` is the plain name
    ("float32", "bfloat16"); bytes are the contiguous little-endian values. A tied output head is one tensor: leave out
    the second name (`stored_names`). Raises ValueError when names are out of order or repeated.
    """
    sha, last = hashlib.sha256(), ""
    for name, dtype, shape, data in items:
        if name <= last:
            raise ValueError(f"tensor {name!r} comes after {last!r}: pass each name once, sorted")
        last = name
        sha.update(tensor_header(name, dtype, shape) + b"\n")
        sha.update(data)
    return "sha256:" + sha.hexdigest()


def fingerprint(items: Iterable[Item]) -> str:
    """ "mix128:<32 hex digits>" of a set of tensors, in any order; items as in `digest_tensors`.

    A tensor's bytes are read as little-endian int32 words w (zeros fill the last row) in rows of ROW_WORDS. A row has
    the hash h_k = sum_i T_k[i] w[i] mod 2^64 in two lanes k with fixed odd T_k, so that one flipped bit always changes
    it (an odd number times 2^b is never 0) and so does swapping two different elements of a row (no two T agree in
    their low 33 bits). The fingerprint is the sum over all rows of a bijective mix of h_k with the tensor's name,
    dtype and shape and the row's number, plus a term a tensor: one changed row always changes it; two or more rows, a
    name or a shape change it but for a collision of 128 mixed bits. ValueError where a tensor is given twice.
    """
    headers: list[bytes] = []
    parts: list[tuple[int, int, int]] = []
    hashes: list[NDArray[np.int64]] = []
    for index, (name, dtype, shape, data) in enumerate(items):
        headers.append(tensor_header(name, dtype, shape))
        for first, rows in _word_rows(data):
            hashes.append(_row_hashes(rows))
            parts.append((index, first, len(rows)))
    joined = np.concatenate(hashes) if hashes else np.empty((0, LANES), np.int64)
    return combine_rows(headers, parts, joined)


def tensor_header(name: str, dtype: str, shape: Sequence[int]) -> bytes:
    """What of a tensor besides its values is digested."""
    return json.dumps([name, dtype, [int(n) for n in shape]]).encode()


def combine_rows(headers: Sequence[bytes], parts: Sequence[tuple[int, int, int]], hashes: NDArray[np.int64]) -> str:
    """The fingerprint from row hashes [rows, LANES]; `parts` say whose they are: (index of header, first row, count).

    Raises ValueError where a tensor is given twice or the parts do not cover the rows.
    """
    if len(set(headers)) != len(headers):
        raise ValueError("a tensor is given twice: pass each name once")
    counts = np.array([count for _, _, count in parts], np.int64)
    if counts.sum() != len(hashes):
        raise ValueError(f"{len(hashes)} row hashes for {counts.sum()} rows")
    raw = b"".join(hashlib.sha256(header).digest()[: 8 * LANES] for header in headers)
    keys = np.frombuffer(raw, "<u8").astype(np.uint64).reshape(-1, LANES)
    owner = np.repeat(np.array([index for index, _, _ in parts], np.int64), counts)
    starts = np.repeat(np.array([first for _, first, _ in parts], np.int64) - np.cumsum(counts) + counts, counts)
    rows = (starts + np.arange(len(hashes))).astype(np.uint64)[:, None]
    with np.errstate(over="ignore"):
        terms = _mixed(hashes.view(np.uint64) ^ _mixed(keys[owner] + (rows + np.uint64(1)) * _GOLDEN))
        lanes = terms.sum(0, dtype=np.uint64) + _mixed(keys).sum(0, dtype=np.uint64)
    return "mix128:" + "".join(f"{int(lane):016x}" for lane in lanes)


@cache
def row_table() -> NDArray[np.int64]:
    """The fixed odd multipliers T, [LANES, ROW_WORDS]. Do not change them: recorded fingerprints would not match."""
    with np.errstate(over="ignore"):
        table = _mixed(np.arange(1, LANES * ROW_WORDS + 1, dtype=np.uint64) * _GOLDEN) | np.uint64(1)
    return table.view(np.int64).reshape(LANES, ROW_WORDS)


def stored_names(addresses: Mapping[str, Any]) -> list[str]:
    """Names of a state dict that are stored and digested, sorted; `addresses`: where each tensor lies in memory.

    An output head in the memory of an input embedding is one tensor and is left out, so that a model has one digest
    whether its file names the head or not.
    """
    head = addresses.get(_HEAD)
    tied = head is not None and any(at == head for name, at in addresses.items() if name != _HEAD)
    return sorted(name for name in addresses if not (tied and name == _HEAD))


def _word_rows(data: bytes | memoryview) -> Iterator[tuple[int, NDArray[np.int32]]]:
    """(number of the first row, int32 rows [n, ROW_WORDS]) of a tensor's bytes, a few rows at a time."""
    flat = np.frombuffer(data, np.uint8)
    step = _ROWS_AT_ONCE * ROW_BYTES
    for start in range(0, flat.size, step):
        block = flat[start : start + step]
        if block.size % ROW_BYTES:
            block = np.concatenate([block, np.zeros(-block.size % ROW_BYTES, np.uint8)])
        yield start // ROW_BYTES, block.view("<i4").reshape(-1, ROW_WORDS)


def _row_hashes(rows: NDArray[np.int32]) -> NDArray[np.int64]:
    words = rows.astype(np.int64)
    return np.stack([np.einsum("ij,j->i", words, row_table()[lane]) for lane in range(LANES)], axis=1)


def _mixed(words: Words) -> Words:
    """A bijection of 64-bit words in which every bit depends on every other (the finaliser of splitmix64)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
