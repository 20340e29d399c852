"""The line reader: every line is either read or counted, with its place, whatever is wrong with it."""

from __future__ import annotations

import gzip
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timscope.data import BadInput
from timscope.data.importers import jsonl
from timscope.data.importers.base import Findings
from timscope.data.importers.json_values import float_list, text
from timscope.data.importers.jsonl import first_object, lines
from timscope.data.importers.step_files import note_gaps, note_missing_ranks

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=6,
)
OBJECTS = st.lists(st.dictionaries(st.text(max_size=3), JSON, max_size=3), max_size=5)


def _same(a: Any, b: Any) -> bool:
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


@settings(max_examples=40, deadline=None)
@given(OBJECTS, st.booleans(), st.integers(0, 400))
def test_every_line_is_read_or_counted(written: list[dict[str, Any]], packed: bool, cut: int) -> None:
    raw = "".join(json.dumps(o) + "\n" for o in written).encode()
    raw = raw[: max(0, len(raw) - cut)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("a.jsonl.gz" if packed else "a.jsonl")
        path.write_bytes(gzip.compress(raw) if packed else raw)
        findings = Findings()
        got = list(lines(path, findings))
    ends = np.cumsum([0, *(len(json.dumps(o)) + 1 for o in written)])
    whole = [i for i in range(len(written)) if ends[i + 1] - 1 <= len(raw)]  # the line break itself may be missing
    assert [line.number for line in got] == [i + 1 for i in whole]
    assert [line.offset for line in got] == [int(ends[i]) for i in whole]
    assert all(_same(line.data, written[i]) for line, i in zip(got, whole, strict=True))
    half = len(whole) < len(written) and len(raw) > ends[len(whole)]
    found = findings.listed()
    assert [f.kind for f in found] == (["truncated-dump"] if half else [])
    if half:
        assert found[0].evidence["offset"] == ends[len(whole)] and found[0].evidence["line"] == len(whole) + 1


def test_broken_lines_are_counted_with_the_first_place(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    raw = b'{"a": 1}\n{"a": \n[1]\n\n\xff\xfe\n{"a": 2}\n'
    path.write_bytes(raw)
    findings = Findings()
    got = list(lines(path, findings))
    assert [(line.number, line.data["a"], line.offset) for line in got] == [(1, 1, 0), (6, 2, raw.index(b'{"a": 2}'))]
    assert next(lines(path, Findings(), got[1].offset)).data == {"a": 2}
    (found,) = findings.listed()
    assert (found.kind, found.count) == ("broken-line", 3)
    assert (found.evidence["line"], found.evidence["offset"], found.evidence["file"]) == (2, 9, "a.jsonl")


def test_a_tail_of_zero_bytes_is_a_half_written_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n' + b"\0" * 100)
    findings = Findings()
    assert len(list(lines(path, findings))) == 1
    assert [f.kind for f in findings.listed()] == ["truncated-dump"]


def test_a_cut_gzip_file_gives_what_can_be_unpacked(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    raw = "".join(json.dumps({"a": rng.random(50).tolist()}) + "\n" for _ in range(400)).encode()
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(raw)[:-20_000])
    findings = Findings()
    got = list(lines(path, findings))
    assert 100 < len(got) < 400 and [f.kind for f in findings.listed()] == ["truncated-dump"]
    assert got[-1].data == json.loads(raw.split(b"\n")[len(got) - 1])


def test_nan_infinities_and_surrogates_as_python_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": [NaN, Infinity, -Infinity, null, 1], "t": "\\ud800x"}\n')
    findings = Findings()
    (line,) = lines(path, findings)
    values = float_list(line.data["a"], findings, "a", line.place)
    assert isinstance(values, np.ma.MaskedArray) and values.mask.tolist() == [False, False, False, True, False]
    assert math.isnan(values.data[0]) and values.data[[1, 2, 4]].tolist() == [math.inf, -math.inf, 1.0]
    assert text(line.data["t"]) == "\\ud800x" and findings.listed() == []


@given(st.lists(st.one_of(st.none(), st.floats(), st.integers(-(2**40), 2**40)), max_size=20))
def test_float_lists_keep_null_and_nan_apart(values: list[float | int | None]) -> None:
    got = float_list(values, Findings(), "a", "")
    assert got is not None and len(got) == len(values)
    assert np.ma.getmaskarray(got).tolist() == [v is None for v in values]
    for a, b in zip(np.ma.getdata(got).tolist(), values, strict=True):
        assert b is None or a == b or (math.isnan(a) and math.isnan(b))


def test_numbers_as_text_are_noted_and_words_refused() -> None:
    findings = Findings()
    values = float_list(["-0.5", "NaN", None, 2], findings, "rewards", "f:3")
    assert values is not None and np.ma.getdata(values)[[0, 3]].tolist() == [-0.5, 2.0]
    assert math.isnan(np.ma.getdata(values)[1]) and np.ma.getmaskarray(values).tolist() == [False, False, True, False]
    (found,) = findings.listed()
    assert found.kind == "numbers-as-strings" and found.evidence["place"] == "f:3"
    with pytest.raises(BadInput, match="f:3: rewards"):
        float_list(["high"], Findings(), "rewards", "f:3")


def test_a_line_that_cannot_be_held_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "MAX_LINE", 20)
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"a": "' + "x" * 30 + '"}\n')
    with pytest.raises(BadInput, match=r"a\.jsonl:2 is longer"):
        list(lines(path, Findings()))
    with pytest.raises(BadInput, match="cannot be read"):
        list(lines(tmp_path / "none.jsonl", Findings()))


@pytest.mark.parametrize("raw", [b"", b"[1]\n", b"{", b"\xff", b"\0\0"])
def test_the_first_object_of_anything(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "a.jsonl").write_bytes(raw)
    assert first_object(tmp_path / "a.jsonl") == {} == first_object(tmp_path)
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n' + raw)
    assert first_object(tmp_path / "a.jsonl") == {"a": 1}


@pytest.mark.parametrize(
    ("steps", "count"), [([], 0), ([4], 0), ([3, 4, 5], 0), ([1, 3], 1), ([0, 1, 7, 9], 6), ([9, 1], 7)]
)
def test_gaps_between_steps(steps: list[int], count: int) -> None:
    findings = Findings()
    note_gaps(steps, findings)
    assert sum(f.count for f in findings.listed()) == count


@pytest.mark.parametrize(
    ("ranks", "missing"),
    [
        ({1: [0], 2: [0]}, {}),
        ({1: [0, 1, 2], 2: [0, 1, 2]}, {}),
        ({1: [0, 4, 8]}, {}),
        ({1: [0, 1], 2: [1]}, {2: [0]}),
        ({1: [0, 1, 3], 2: [0, 1, 3]}, {1: [2]}),
        ({1: [1, 2]}, {1: [0]}),
        ({1: [3]}, {1: [0]}),
    ],
)
def test_ranks_that_must_be_there(ranks: dict[int, list[int]], missing: dict[int, list[int]]) -> None:
    findings = Findings()
    note_missing_ranks(ranks, findings)
    assert {f.evidence["step"]: f.evidence["missing"] for f in findings.listed()} == missing
