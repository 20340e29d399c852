"""AReaL's rollout dump comes back as it was written, with the weight versions of each sample."""

from __future__ import annotations

import tempfile
from pathlib import Path

import dump_text
import pytest
from dump_text import Text, texts
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import assert_rows, read, through_a_run

from timscope.data.importers.areal import FORMAT

Tasks = dict[tuple[int, int], tuple[list[Text], list[list[int]]]]
RLE = st.lists(st.tuples(st.integers(-1, 9), st.integers(1, 50)).map(list), min_size=1, max_size=4)


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(
        st.tuples(st.integers(0, 12), st.integers(0, 120)),
        st.tuples(st.lists(texts(), min_size=1, max_size=3), RLE),
        min_size=1,
        max_size=4,
    )
)
def test_what_was_written_comes_back(tasks: Tasks) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for (version, task), (written, rle) in tasks.items():
            dump_text.areal(Path(folder), version, task, written, rle)
        result = read(FORMAT, Path(folder))
    want, numbers = {}, dict.fromkeys((version for version, _ in tasks), 0)
    for (version, task), (written, rle) in sorted(tasks.items()):
        known = [v for v, _ in rle if v >= 0]
        first, last = (min(known), max(known)) if known else (None, None)
        for i, sample in enumerate(written):
            want[version, numbers[version]] = {
                "uid": f"{task}_{i}", "group_id": str(task), "prompt": sample.prompt, "completion": sample.completion,
                "reward": sample.reward, "num_tokens": sum(n for _, n in rle), "turns": 1,
                "weight_version": first if first == last else None, "weight_version_min": first,
                "weight_version_max": last,
            }  # fmt: skip
            numbers[version] += 1
    assert_rows(result.sequences(), want)
    assert result.tokens() == {} and result.kinds == {}


def test_multi_turn_and_changed_rewards_through_a_run(tmp_path: Path) -> None:
    segments = [{"role": r, "len": 1, "text": "x"} for r in ("prompt", "gen", "context", "gen")]
    extra = {"segments": segments, "original_reward": 0.75}
    dump_text.areal(tmp_path, 3, 8, [Text("q", "a", 1.0, extra=extra), Text("q", "b", 0.0)], [[2, 5], [3, 7]])
    with through_a_run(tmp_path / "rollout", tmp_path / "run") as run:
        frame = run.sequences()
        assert frame["turns"].to_list() == [2, 1] and frame["original_reward"].to_list() == [0.75, None]
        assert frame["weight_version"].to_list() == [None, None] and frame["weight_version_min"].to_list() == [2, 2]
        assert frame["num_tokens"].to_list() == [12, 12] and run.tokens().is_empty()
        assert run.manifest.framework.name == "areal"


@pytest.mark.parametrize("fault", ["half-line", "text", "no-versions", "odd-versions", "none"])
def test_each_fault_is_named_and_the_rest_is_imported(tmp_path: Path, fault: str) -> None:
    for task in (1, 2):
        path = dump_text.areal(tmp_path, 0, task, [Text("q", "a", 1.0), Text("q", "b", 0.5)], [[0, 3]])
    raw = path.read_text()
    change, kind, left = {
        "half-line": (raw[:-5], "truncated-dump", 3),
        "text": (raw.replace('"reward": 0.5', '"reward": "0.5"'), "numbers-as-strings", 4),
        "no-versions": (raw.replace("version_rle", "rle", 1), "integrity", 3),
        "odd-versions": (raw.replace("[[0, 3]]", "[0, 3]", 1), "integrity", 3),
        "none": (raw, None, 4),
    }[fault]
    path.write_text(change)
    result = read(FORMAT, tmp_path / "rollout" / "0")
    assert set(result.kinds) == ({kind} if kind else set()) and len(result.sequences()) == left
