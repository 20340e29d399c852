"""The two digests: what they must see (every bit, place, name, dtype, shape) and must not (order, tied heads)."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timscope.data.digest import (
    LANES,
    ROW_BYTES,
    ROW_WORDS,
    Item,
    combine_rows,
    digest_tensors,
    fingerprint,
    row_table,
    stored_names,
)

WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "uint8": 1, "int32": 4, "float64": 8}


@st.composite
def tensors(draw: Any) -> list[Item]:
    """A few tensors, some empty, some 0-d, one perhaps longer than a row; any bits, NaN payloads among them."""
    names = draw(st.lists(st.text("abc.", min_size=1, max_size=4), min_size=1, max_size=4, unique=True))
    made = []
    for name in sorted(names):
        dtype = draw(st.sampled_from(sorted(WIDTH)))
        shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
        if draw(st.integers(0, 9)) == 0:
            shape = (ROW_BYTES // WIDTH[dtype] + draw(st.integers(-1, 1)),)
        size = int(np.prod(shape, dtype=np.int64)) * WIDTH[dtype]
        seed = draw(st.integers(0, 2**32 - 1))
        made.append((name, dtype, shape, np.random.default_rng(seed).bytes(size)))
    return made


def brute_force(items: list[Item]) -> str:
    """The definition in Python integers, one word at a time."""
    mask = 2**64 - 1

    def mixed(x: int) -> int:
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    golden = 0x9E3779B97F4A7C15
    count = LANES * ROW_WORDS
    table = [mixed((i * golden) & mask) | 1 for i in range(1, count + 1)]
    lanes = [0] * LANES
    for name, dtype, shape, data in items:
        raw = bytes(data) + b"\0" * (-len(data) % ROW_BYTES)
        keys = struct.unpack("<2Q", hashlib.sha256(json.dumps([name, dtype, list(shape)]).encode()).digest()[:16])
        for lane in range(LANES):
            lanes[lane] += mixed(keys[lane])
            for row in range(len(raw) // ROW_BYTES):
                words = struct.unpack(f"<{ROW_WORDS}i", raw[row * ROW_BYTES : (row + 1) * ROW_BYTES])
                own = table[lane * ROW_WORDS : (lane + 1) * ROW_WORDS]
                total = sum(w * t for w, t in zip(words, own, strict=True) if w) & mask
                lanes[lane] += mixed(total ^ mixed((keys[lane] + (row + 1) * golden) & mask))
    return "mix128:" + "".join(f"{lane & mask:016x}" for lane in lanes)


@given(tensors())
@settings(max_examples=8, deadline=None)
def test_the_fingerprint_is_its_definition(items: list[Item]) -> None:
    assert fingerprint(items) == brute_force(items)
    assert fingerprint(reversed(items)) == fingerprint(items)


def test_it_is_known_for_ever() -> None:
    """Recorded fingerprints must still match after any rewriting: a fixed example."""
    ramp = np.arange(40_000, dtype="<i4").tobytes()
    items = [("a", "int32", (40_000,), ramp), ("b.weight", "bfloat16", (3, 1), b"\x01\x80\xff\x7f\x00\x00")]
    assert fingerprint(items) == "mix128:d3941ef4c279b42710004843c5838bcf"


@given(tensors(), st.data())
@settings(max_examples=60, deadline=None)
def test_any_flipped_bit_changes_both(items: list[Item], data: Any) -> None:
    filled = [i for i, item in enumerate(items) if len(item[3])]
    if not filled:
        return
    which = data.draw(st.sampled_from(filled))
    name, dtype, shape, values = items[which]
    bit = data.draw(st.integers(0, 8 * len(values) - 1))
    changed = bytearray(values)
    changed[bit // 8] ^= 1 << bit % 8
    other = [*items[:which], (name, dtype, shape, bytes(changed)), *items[which + 1 :]]
    assert fingerprint(other) != fingerprint(items)
    assert digest_tensors(other) != digest_tensors(items)


@given(st.sampled_from(["uint8", "bfloat16", "float32"]), st.integers(0, 2**32 - 1), st.data())
@settings(max_examples=60, deadline=None)
def test_swapping_two_elements_changes_it(dtype: str, seed: int, data: Any) -> None:
    width = WIDTH[dtype]
    count = 3 * ROW_BYTES // width // 2
    values = np.frombuffer(np.random.default_rng(seed).bytes(count * width), f"u{width}").copy()
    first, second = data.draw(st.lists(st.integers(0, count - 1), min_size=2, max_size=2, unique=True))
    swapped = values.copy()
    swapped[[first, second]] = values[[second, first]]
    same = bool(values[first] == values[second])
    marks = [fingerprint([("w", dtype, (count,), v.tobytes())]) for v in (values, swapped)]
    assert (marks[0] == marks[1]) is same


def test_names_dtypes_shapes_and_exchanged_tensors_change_it() -> None:
    a, b = bytes(range(24)), bytes(range(24, 48))
    base = [("a", "float32", (2, 3), a), ("b", "float32", (2, 3), b)]
    others = [
        [("a", "float32", (3, 2), a), base[1]],
        [("a", "int32", (2, 3), a), base[1]],
        [("a", "float32", (6,), a), base[1]],
        [("c", "float32", (2, 3), a), base[1]],
        [("a", "float32", (2, 3), b), ("b", "float32", (2, 3), a)],
        [*base, ("c", "float32", (0,), b"")],
        [*base, ("c", "float32", (0, 1), b"")],
        base[:1],
        [("a", "uint8", (24,), a), base[1]],
        [("a", "uint8", (25,), a + b"\0"), base[1]],
    ]
    for kind in (fingerprint, digest_tensors):
        marks = [kind(base), *map(kind, [sorted(o) for o in others])]
        assert len(set(marks)) == len(marks)


def test_the_multipliers_hold_what_the_docstring_promises() -> None:
    table = row_table().view(np.uint64)
    assert table.shape == (LANES, ROW_WORDS) and np.all(table % 2 == 1)
    for lane in table:
        assert len(np.unique(lane % np.uint64(2**33))) == ROW_WORDS


def test_repeated_and_unsorted_names_are_refused() -> None:
    items = [("b", "uint8", (1,), b"\1"), ("a", "uint8", (1,), b"\1")]
    with pytest.raises(ValueError, match="sorted"):
        digest_tensors(items)
    with pytest.raises(ValueError, match="twice"):
        fingerprint([items[0], items[0]])
    with pytest.raises(ValueError, match="rows"):
        combine_rows([b"x"], [(0, 0, 2)], np.zeros((1, LANES), np.int64))


def test_a_tied_output_head_has_one_name() -> None:
    assert stored_names({"lm_head.weight": 7, "embed": 7, "a": 1}) == ["a", "embed"]
    assert stored_names({"lm_head.weight": 8, "embed": 7}) == ["embed", "lm_head.weight"]
    assert stored_names({"x": 7, "y": 7}) == ["x", "y"]
