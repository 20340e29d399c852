"""NeMo-RL dumps come back as they were written; what is wrong in them is named and left."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import dump_nemo_rl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import assert_rows, read, through_a_run
from samples import SMALL, Sample, flat_advantage, recognisable, said, samples

from timscope.data import BadInput
from timscope.data.importers.nemo_rl import FORMAT


def expected(step: int, written: list[Sample]) -> dict[tuple[int, int, int], dict[str, Any]]:
    rows = {}
    for number, sample in enumerate(written):
        for i, token in enumerate(sample.response):
            rows[step, number, len(sample.prompt) + i] = {
                "token_id": token,
                "mask": sample.sampled[i] and sample.in_loss,
                "rollout_logprob": sample.rollout[i] if sample.sampled[i] else None,
                "old_logprob": sample.trainer[i],
                "advantage": None if flat_advantage(sample) else sample.advantage[i],
                "loss_logprob": None,
                "weight_version": None,
            }
    return rows


@settings(max_examples=40, deadline=None)
@given(st.lists(samples(), min_size=1, max_size=4), st.integers(0, 3), st.integers(1, 10**6), st.booleans())
def test_what_was_written_comes_back(written: list[Sample], pad: int, step: int, ids: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        result = read(FORMAT, dump_nemo_rl.write(Path(folder), step, written, pad, token_ids=ids))
    want = expected(step, written)
    if not ids:
        want = {key: {**row, "token_id": None} for key, row in want.items()}
    assert_rows(result.tokens(), want)
    sequences = result.sequences()
    assert len(sequences) == len(written)
    for number, sample in enumerate(written):
        row = sequences[step, number]
        assert list(row["prompt_ids"]) == sample.prompt if ids else row.get("prompt_ids") is None
        assert row["reward"] == sample.reward and row["num_tokens"] == len(sample.response)
        assert row["advantage"] == (sample.advantage[0] if flat_advantage(sample) else None)
    assert set(result.kinds) <= {"old-copies-rollout"}  # one-token samples can be equal by chance


def test_through_a_run_with_values_as_float32(tmp_path: Path) -> None:
    written = {step: [recognisable(step, 4), recognisable(1, 2, 50)] for step in (1, 2, 3)}
    for step, rows in written.items():
        dump_nemo_rl.write(tmp_path, step, rows)
    with through_a_run(tmp_path, tmp_path / "run") as run:
        got = {(r["step"], r["sequence"], r["position"]): r for r in run.tokens().iter_rows(named=True)}
        want = {key: row for step, rows in written.items() for key, row in expected(step, rows).items()}
        assert_rows(got, want)
        assert run.complete_steps == [1, 2, 3]
        assert run.manifest.framework.name == "nemo-rl" and run.manifest.algorithm.loss_mode == "recompute"


@pytest.mark.parametrize("prompt", [1, 3, 7])
@pytest.mark.parametrize("pad", [0, 5])
def test_every_logprob_is_beside_the_token_it_scores(tmp_path: Path, prompt: int, pad: int) -> None:
    dump_nemo_rl.write(tmp_path, 1, [recognisable(prompt), recognisable(prompt + 2)], pad)
    tokens = read(FORMAT, tmp_path).tokens()
    assert len(tokens) == 10
    for (_, _, position), row in tokens.items():
        want = said(row["token_id"], position)
        assert row["old_logprob"] == pytest.approx(want - 0.5, abs=1e-9)
        assert row["rollout_logprob"] == (pytest.approx(want, abs=1e-9) if row["mask"] else None)


def test_exact_zeros_are_missing_only_outside_the_mask(tmp_path: Path) -> None:
    sample = recognisable(2, 4)
    sample.trainer = [0.0, -1.0, 0.0, 0.0]  # tokens 0, 1, 3 are sampled, 2 is a tool's
    sample.rollout = [-1.0, 0.0, 0.0, -3.0]
    dump_nemo_rl.write(tmp_path, 1, [sample])
    rows = list(read(FORMAT, tmp_path).tokens().values())
    assert [r["old_logprob"] for r in rows] == [0.0, -1.0, None, 0.0]
    assert [r["rollout_logprob"] for r in rows] == [-1.0, 0.0, None, -3.0]


def test_a_clean_dump_has_no_findings_and_text_where_roles_are_certain(tmp_path: Path) -> None:
    sample = recognisable()
    sample.sampled = [True] * 5
    dump_nemo_rl.write(tmp_path, 4, [sample, recognisable()])
    dump_nemo_rl.write(tmp_path, 5, [sample])
    result = read(FORMAT, tmp_path)
    assert result.kinds == {}
    first, second = (result.sequences()[4, i] for i in (0, 1))
    assert (first["prompt"], first["completion"], first["turns"]) == ("abc", "answer", 1)
    assert (second["prompt"], second["completion"], second["turns"]) == (None, None, 2)


def _broken(folder: Path, fault: str) -> None:
    paths = [dump_nemo_rl.write(folder, step, [recognisable(), recognisable(2)]) for step in (1, 2, 3)]
    raw = paths[1].read_bytes()
    if fault == "truncated-dump":
        paths[1].write_bytes(raw[:-200])
    elif fault == "broken-line":
        paths[1].write_bytes(raw.replace(b'"idx": 0}', b'"idx": 0', 1))
    elif fault == "missing-step":
        paths[1].unlink()
    elif fault == "numbers-as-strings":
        data = json.loads(raw.split(b"\n")[0])
        data["generation_logprobs"][0] = [str(v) for v in data["generation_logprobs"][0]]
        data["rewards"] = ["1.0"]
        paths[1].write_text(json.dumps(data) + "\n" + raw.decode().split("\n")[1] + "\n")
    elif fault == "integrity":
        data = json.loads(raw.split(b"\n")[0])
        data["prev_logprobs"][0].pop()
        paths[1].write_text(json.dumps(data) + "\n" + raw.decode().split("\n")[1] + "\n")
    else:
        sample = recognisable()
        sample.trainer = [0.0] * 5 if fault == "zero-filled-old" else list(sample.rollout)
        if fault == "zero-filled-rollout":
            sample.trainer, sample.rollout = recognisable().trainer, [0.0] * 5
        dump_nemo_rl.write(folder, 2, [sample])


LEFT_OUT = {"truncated-dump": 1, "broken-line": 1, "integrity": 1}
FAULTS = [
    "truncated-dump", "broken-line", "missing-step", "numbers-as-strings", "integrity", "zero-filled-old",
    "zero-filled-rollout", "old-copies-rollout",
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named_and_the_rest_is_imported(tmp_path: Path, fault: str) -> None:
    _broken(tmp_path, fault)
    result = read(FORMAT, tmp_path)
    assert set(result.kinds) == {fault}
    steps = {step for step, _ in result.sequences()}
    assert steps == ({1, 3} if fault == "missing-step" else {1, 2, 3})
    if fault in LEFT_OUT:
        assert result.kinds[fault] == 1 and len(result.sequences()) == 5
    if fault == "numbers-as-strings":
        assert result.sequences()[2, 0]["reward"] == 1.0
        assert_rows(result.tokens(), expected(1, []) | _all_expected())
    if fault == "zero-filled-old":
        kept = [r["old_logprob"] for (s, _, _), r in result.tokens().items() if s == 2]
        assert kept == [0.0, 0.0, None, 0.0, 0.0]
        assert result.facts["algorithm"].loss_mode == "unknown"


def _all_expected() -> dict[tuple[int, int, int], dict[str, Any]]:
    return {k: v for s in (1, 2, 3) for k, v in expected(s, [recognisable(), recognisable(2)]).items()}


def test_a_half_written_line_has_its_place(tmp_path: Path) -> None:
    path = dump_nemo_rl.write(tmp_path, 1, [recognisable(), recognisable(2)])
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    evidence = read(FORMAT, tmp_path).evidence("truncated-dump")
    assert evidence["line"] == 2 and evidence["offset"] == whole.index(b"\n") + 1
    assert evidence["file"] == path.name and evidence["bytes"] == len(whole) - 9 - evidence["offset"]


def test_dynamic_sampling_takes_the_reward_of_the_line(tmp_path: Path) -> None:
    sample = recognisable()
    sample.extra = {"rewards": [7.0], "filtered_rewards": [0.5]}
    dump_nemo_rl.write(tmp_path, 1, [sample])
    assert read(FORMAT, tmp_path).sequences()[1, 0]["reward"] == 0.5


def test_a_distillation_dump_is_text(tmp_path: Path) -> None:
    (tmp_path / "train_data_step1.jsonl").write_text('{"content": ["all text"], "input_lengths": [5], "idx": 0}\n')
    result = read(FORMAT, tmp_path)
    assert result.tokens() == {} and result.sequences()[1, 0]["completion"] == "all text"


def test_a_sample_without_generated_tokens_keeps_its_row(tmp_path: Path) -> None:
    sample = recognisable()
    sample.sampled = [False] * 5
    dump_nemo_rl.write(tmp_path, 1, [sample, recognisable()])
    result = read(FORMAT, tmp_path)
    assert result.sequences()[1, 0]["num_tokens"] == 0 and len(result.tokens()) == 5
    assert list(result.sequences()[1, 0]["prompt_ids"]) == sample.ids


def test_experiments_in_a_log_folder(tmp_path: Path) -> None:
    for name in ("exp_001", "exp_002"):
        (tmp_path / name).mkdir()
    dump_nemo_rl.write(tmp_path / "exp_002", 1, [recognisable()])
    assert len(read(FORMAT, tmp_path).tokens()) == 5
    dump_nemo_rl.write(tmp_path / "exp_001", 1, [recognisable()])
    with pytest.raises(BadInput, match="exp_001, exp_002"):
        read(FORMAT, tmp_path)


@given(st.lists(SMALL, min_size=1, max_size=4))
@settings(max_examples=10, deadline=None)
def test_large_steps_come_in_several_parts(values: list[float]) -> None:
    import timscope.data.importers.columns as columns

    before, columns.PART_TOKENS = columns.PART_TOKENS, 4
    try:
        with tempfile.TemporaryDirectory() as folder:
            written = [Sample([1], [2] * 3, [True] * 3, [v] * 3, [v - 1] * 3, [v] * 3, 0.0) for v in values]
            result = read(FORMAT, dump_nemo_rl.write(Path(folder), 1, written))
    finally:
        columns.PART_TOKENS = before
    assert len(result.parts) == len(values)
    assert_rows(result.tokens(), expected(1, written))
