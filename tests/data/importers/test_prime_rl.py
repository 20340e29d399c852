"""prime-rl exports come back as they were written, joined to their traces; what is missing is named."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import dump_prime_rl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import assert_rows, read, same, through_a_run
from samples import Sample, flat_advantage, recognisable, said, samples

from timscope.data.importers.prime_rl import FORMAT


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def expected(step: int, ranks: list[list[Sample]]) -> dict[tuple[int, int, int], dict[str, Any]]:
    rows = {}
    for number, sample in enumerate(s for written in ranks for s in written):
        sample_rows = dump_prime_rl.line(sample, step, 0, 0)
        for i, token in enumerate(sample.response):
            at = len(sample.prompt) + i
            rows[step, number, at] = {
                "token_id": token,
                "mask": sample.sampled[i] and sample.in_loss,
                "rollout_logprob": _finite(sample.rollout[i]) if sample.sampled[i] else None,
                "loss_logprob": _finite(sample.trainer[i]),
                "old_logprob": None,
                "entropy": 0.5 + at,
                "rollout_is_weight": sample_rows["importance_ratio"][at],
                "advantage": None if flat_advantage(sample) else sample.advantage[i],
            }
    return rows


def _findings(ranks: list[list[Sample]]) -> set[str]:
    values = [
        v for written in ranks for s in written for r, t, m in zip(s.rollout, s.trainer, s.sampled, strict=True)
        if m and s.in_loss for v in (r, t)
    ]  # fmt: skip
    return set() if all(map(math.isfinite, values)) else {"non-finite"}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(samples(), min_size=1, max_size=2), min_size=1, max_size=3), st.integers(0, 10**6))
def test_what_was_written_comes_back(ranks: list[list[Sample]], step: int) -> None:
    for written in ranks:
        for sample in written:
            sample.rollout[0] = -1.0  # a null here would hide where the response starts
    with tempfile.TemporaryDirectory() as folder:
        result = read(FORMAT, dump_prime_rl.write(Path(folder), step, ranks))
    assert_rows(result.tokens(), expected(step, ranks))
    numbers = iter(range(100))
    for rank, written in enumerate(ranks):
        for j, sample in enumerate(written):
            row = result.sequences()[step, next(numbers)]
            assert list(row["prompt_ids"]) == sample.prompt and row["rank"] == rank
            assert row["micro_batch"] == j // 2 and row["is_masked"] == 1.0
            assert same(row["advantage"], sample.advantage[0] if flat_advantage(sample) else None)
    assert set(result.kinds) == _findings(ranks)
    assert result.facts["algorithm"].loss_mode == "bypass"


@pytest.mark.parametrize("prompt", [1, 4])
def test_every_logprob_is_beside_the_token_it_scores(tmp_path: Path, prompt: int) -> None:
    dump_prime_rl.write(tmp_path, 1, [[recognisable(prompt), recognisable(prompt + 3)], [recognisable(prompt + 1)]])
    tokens = read(FORMAT, tmp_path / "token_exports").tokens()
    assert len(tokens) == 15
    for (_, _, position), row in tokens.items():
        want = said(row["token_id"], position)
        assert row["loss_logprob"] == pytest.approx(want - 0.5, abs=1e-9)
        assert row["rollout_logprob"] == (pytest.approx(want, abs=1e-9) if row["mask"] else None)
        assert row["entropy"] == 0.5 + position


def _clean(output: Path, steps: tuple[int, ...] = (1, 2, 3)) -> None:
    for step in steps:
        dump_prime_rl.write(output, step, [[recognisable(2)], [recognisable(3)], [recognisable(4)]])


def test_a_clean_dump_has_no_findings_and_reads_through_a_run(tmp_path: Path) -> None:
    _clean(tmp_path)
    assert read(FORMAT, tmp_path).kinds == {}
    with through_a_run(tmp_path, tmp_path / "run") as run:
        assert run.complete_steps == [1, 2, 3] and run.tokens().height == 45
        assert run.manifest.framework.name == "prime-rl" and run.manifest.algorithm.loss_mode == "bypass"


@pytest.mark.parametrize("stride", [2, 4])
def test_ranks_of_a_context_parallel_job_are_all_there(tmp_path: Path, stride: int) -> None:
    dump_prime_rl.write(tmp_path, 1, [[recognisable()]] * 3, stride=stride)
    assert read(FORMAT, tmp_path).kinds == {}


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_missing_rank_is_named(tmp_path: Path, everywhere: bool) -> None:
    _clean(tmp_path)
    for step in (1, 2, 3) if everywhere else (2,):
        (tmp_path / f"token_exports/step_{step}/rank_1.jsonl").unlink()
    dump_prime_rl.write(tmp_path, 4, [[recognisable()]] * (4 if everywhere else 3))
    if everywhere:
        (tmp_path / "token_exports/step_4/rank_1.jsonl").unlink()
    result = read(FORMAT, tmp_path)
    assert set(result.kinds) == {"missing-rank"}
    assert result.evidence("missing-rank")["missing"] == ([1, 3] if everywhere else [1])
    assert result.evidence("missing-rank")["step"] == (1 if everywhere else 2)


@pytest.mark.parametrize("fault", ["no-stable", "half-line", "missing-step", "null", "text", "length"])
def test_each_fault_is_named_and_the_rest_is_imported(tmp_path: Path, fault: str) -> None:
    _clean(tmp_path)
    folder = tmp_path / "token_exports/step_2"
    file = folder / "rank_1.jsonl"
    raw = file.read_text()
    data = json.loads(raw)
    kind, left = {
        "no-stable": ("truncated-dump", 9), "half-line": ("truncated-dump", 8), "missing-step": ("missing-step", 6),
        "null": ("non-finite", 9), "text": ("numbers-as-strings", 9), "length": ("integrity", 8),
    }[fault]  # fmt: skip
    if fault == "no-stable":
        (folder / "STABLE").unlink()
    elif fault == "half-line":
        file.write_text(raw[:-30])
    elif fault == "missing-step":
        for path in folder.iterdir():
            path.unlink()
    elif fault == "null":
        data["trainer_logprobs"][4] = None
        file.write_text(json.dumps(data) + "\n")
    elif fault == "text":
        data["trainer_logprobs"] = [str(v) for v in data["trainer_logprobs"]]
        file.write_text(json.dumps(data) + "\n")
    else:
        data["entropy"].pop()
        file.write_text(json.dumps(data) + "\n")
    result = read(FORMAT, tmp_path)
    assert set(result.kinds) == {kind} and len(result.sequences()) == left
    if fault == "null":
        assert result.kinds[kind] == 1 and result.tokens()[2, 1, 4]["loss_logprob"] is None
    if fault == "text":
        assert result.tokens()[2, 1, 3]["loss_logprob"] == recognisable(3).trainer[0]


def test_columns_that_were_never_computed_are_absent(tmp_path: Path) -> None:
    data = dump_prime_rl.line(recognisable(), 1, 0, 0)
    data["importance_ratio"] = data["is_masked"] = [None] * len(data["token_ids"])
    folder = dump_prime_rl.write(tmp_path, 1, [[]]) / "token_exports/step_1"
    (folder / "rank_0.jsonl").write_text(json.dumps(data) + "\n")
    result = read(FORMAT, tmp_path)
    assert result.kinds == {} and "rollout_is_weight" not in result.parts[0].tables["tokens"]
    assert "is_masked" not in result.sequences()[1, 0]


def test_traces_give_group_version_and_reward(tmp_path: Path) -> None:
    first, second, cut = recognisable(2), recognisable(3, first_id=90), recognisable(4, first_id=300)
    dump_prime_rl.write(tmp_path, 1, [[first, second], [cut]])
    episodes = [
        dump_prime_rl.trace(first, "a", start=3, end=3, reward=1.0),
        dump_prime_rl.trace(second, "b", start=3, end=5, reward=0.0),
        dump_prime_rl.trace(Sample(cut.prompt, [*cut.response, 7], [], [], [], [], 0.0), "c"),  # cut by the trainer
    ]
    dump_prime_rl.write_traces(tmp_path, 1, episodes)
    result = read(FORMAT, tmp_path)
    a, b, c = (result.sequences()[1, i] for i in range(3))
    assert (a["group_id"], a["uid"], a["reward"], a["finish_reason"]) == ("a", "trace-a", 2.5, "stop")
    assert (a["weight_version"], b["weight_version"]) == (3, None)
    assert (b["group_id"], b["reward"], b["weight_version_min"], b["weight_version_max"]) == ("b", 0.5, 3, 5)
    assert (c["group_id"], c["reward"], c["weight_version"]) == (None, None, None)
    assert result.kinds == {"traces-unmatched": 1, "mixed-versions": 1}


def test_equal_samples_of_two_groups_get_only_what_their_traces_agree_in(tmp_path: Path) -> None:
    dump_prime_rl.write(tmp_path, 1, [[recognisable(), recognisable()]])
    dump_prime_rl.write_traces(
        tmp_path, 1, [dump_prime_rl.trace(recognisable(), name, reward=1.0) for name in ("a", "b")], subset="all"
    )
    row = read(FORMAT, tmp_path).sequences()[1, 0]
    assert row.get("group_id") is None and row["reward"] == 2.5 and row["weight_version"] == 3


def test_metrics_fill_the_steps(tmp_path: Path) -> None:
    _clean(tmp_path, (1, 2))
    lines: list[dict[str, Any]] = [
        {"step": 1, "time": 1.0, "loss/mean": 0.5, "optim/grad_norm": 2.0, "optim/lr": 1e-6},
        {"step": 3, "time": 3.0, "off_policy/mean": 0.25},
        {"step": 1, "time": 2.0, "entropy/all/mean": 0.75},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(m) + "\n" for m in lines))
    result = read(FORMAT, tmp_path)
    steps = {row["step"]: row for row in result.table("steps")}
    assert result.kinds == {} and sorted(steps) == [1, 3] and len(result.sequences()) == 6
    wanted = {"loss": 0.5, "grad_norm": 2.0, "learning_rate": 1e-6, "entropy": 0.75, "loss/mean": 0.5, "time": 2.0}
    assert {k: steps[1][k] for k in wanted} == wanted
    assert steps[3]["off_policy/mean"] == 0.25 and steps[3]["loss"] is None
