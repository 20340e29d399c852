"""The writer's seams: work done on its thread, what a full queue loses, several ranks, a job that is started again."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from timscope.data import BadInput, Manifest, RunWriter, open_run

TOKEN = {"sequence": [0, 0], "position": [4, 5]}


def steps(writer: RunWriter, *numbers: int, sequence: int = 0) -> None:
    for number in numbers:
        writer.put("tokens", number, {"sequence": [sequence, sequence], "position": [4, 5]})
        writer.complete(number)


def blocked(writer: RunWriter) -> tuple[threading.Event, threading.Event]:
    """Stops the writer's thread: (set once it stands still, to be set to let it go on)."""
    started, release = threading.Event(), threading.Event()
    writer.call(lambda: [started.set(), release.wait(10)])
    assert started.wait(10)
    return started, release


def test_later_runs_on_the_thread_and_in_order(tmp_path: Path) -> None:
    said: list[Any] = []
    main = threading.current_thread()

    def make() -> dict[str, dict[str, Any]]:
        said.append("rows" if threading.current_thread() is not main else "wrong thread")
        return {"tokens": TOKEN, "steps": {"loss": [0.5]}, "gradients": {}}

    with RunWriter(tmp_path, strict=True) as writer:
        assert writer.call(lambda: said.append("first"))
        assert writer.put_later(3, make)
        writer.complete(3)
        assert writer.call(lambda: said.append("last"))
    assert said == ["first", "rows", "last"]
    with open_run(tmp_path) as run:
        assert run.complete_steps == [3] and len(run.tokens()) == 2 and run.steps()["loss"].to_list() == [0.5]


def test_a_job_may_put_more_even_into_a_full_queue(tmp_path: Path) -> None:
    with RunWriter(tmp_path, strict=True, queue_size=1) as writer:
        writer.call(lambda: steps(writer, 0, 1, 2))
    with open_run(tmp_path) as run:
        assert run.complete_steps == [0, 1, 2] and len(run.tokens()) == 6


def test_an_error_in_a_job_is_kept_and_its_step_stays_incomplete(tmp_path: Path, caplog: Any) -> None:
    def fail() -> dict[str, Any]:
        raise RuntimeError("made to fail")

    with RunWriter(tmp_path) as writer:
        writer.put_later(0, fail)
        writer.complete(0)
        writer.call(lambda: [][1])
        steps(writer, 1)
        writer.report("told from outside")
        writer.report("told from outside")
    assert len([r for r in caplog.records if r.levelname == "ERROR"]) == 1
    with open_run(tmp_path) as run:
        assert run.complete_steps == [1]
        assert run.manifest.recorder.errors == writer.errors and len(writer.errors) == 3
        assert "step 0: made to fail" in run.problems and run.problems.count("told from outside") == 1
    strict = RunWriter(tmp_path / "strict", strict=True)
    strict.put_later(0, fail)
    strict.flush()
    with pytest.raises(RuntimeError, match="made to fail"):
        strict.put("tokens", 1, TOKEN)
    strict.close()


def test_many_errors_are_counted_not_kept(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer:
        for number in range(50):
            writer.report(f"error {number}")
    with open_run(tmp_path) as run:
        assert len(run.manifest.recorder.errors) == 20
        assert any(p.startswith("30 further error(s)") for p in run.problems)


def test_a_full_queue_drops_whole_steps_and_counts_tokens(tmp_path: Path) -> None:
    with RunWriter(tmp_path, queue_size=2, overflow="drop") as writer:
        _, release = blocked(writer)
        taken = [writer.put_later(n, lambda: {"tokens": TOKEN, "sequences": {"sequence": [0]}}, 2) for n in range(4)]
        assert not writer.put("tokens", 4, TOKEN) and not writer.call(lambda: None)
        for number in range(5):
            writer.complete(number)
        release.set()
    assert taken == [True, False, False, False]  # the second slot is the standing job's
    with open_run(tmp_path) as run:
        assert run.manifest.recorder.drops == 5 and run.recorders[0].dropped_tokens == 8
        assert run.complete_steps == [0, 1, 2, 3, 4] and len(run.tokens()) == 2
        assert "step 2 lacks 1 part(s) (2 tokens) the recorder dropped" in run.problems
        assert any("dropped 5 part(s) (8 tokens)" in p for p in run.problems)


def test_a_full_queue_blocks_until_there_is_room(tmp_path: Path) -> None:
    with RunWriter(tmp_path, queue_size=1, strict=True) as writer:
        _, release = blocked(writer)
        threading.Timer(0.05, release.set).start()
        assert writer.put("tokens", 0, TOKEN) and release.is_set()
        writer.complete(0)
    with open_run(tmp_path) as run:
        assert run.complete_steps == [0] and run.manifest.recorder.drops == 0


def test_flush_makes_what_was_put_readable(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    steps(writer, 0)
    assert writer.flush(10)
    with open_run(tmp_path) as run:
        assert run.complete_steps == [0] and not run.recorders[0].closed
    _, release = blocked(writer)
    assert not writer.flush(0.05)
    release.set()
    writer.close()
    assert not writer.flush(1) and not writer.put("tokens", 1, TOKEN)
    with open_run(tmp_path) as run:
        assert run.recorders[0].closed and run.manifest.recorder.closed


def test_every_rank_is_heard(tmp_path: Path) -> None:
    for rank in (0, 1, 2):
        with RunWriter(tmp_path, rank=rank, world_size=3, overflow="drop", queue_size=1) as writer:
            steps(writer, 0, sequence=rank)
            if rank == 1:
                writer.report("column 'entropy' is off: no reason")
                assert writer.flush(10)
                _, release = blocked(writer)
                writer.put("tokens", 1, TOKEN)
                release.set()
    with open_run(tmp_path) as run:
        assert [s.rank for s in run.recorders] == [0, 1, 2] and run.complete_steps == [0]
        assert "rank 1: column 'entropy' is off: no reason" in run.problems
        assert "rank 1: the recorder dropped 1 part(s) (2 tokens): its queue was full" in run.problems
        assert run.manifest.recorder.errors == [] and run.manifest.recorder.drops == 0
        assert run.tokens()["sequence"].to_list() == [0, 0, 1, 1, 2, 2]
    (tmp_path / "recorder/rank=2.json").write_text("{")
    with pytest.raises(BadInput, match=r"rank=2\.json is damaged"):
        open_run(tmp_path)


def test_a_resumed_run_counts_and_keeps_complete_steps(tmp_path: Path) -> None:
    url = "memory://resume-run"
    for folder in (str(tmp_path), url):
        for attempt, numbers in enumerate(((0, 1), (1, 2), (3,))):
            with RunWriter(folder, Manifest(environment={"attempt": attempt})) as writer:
                assert writer.resumes == attempt
                assert [writer.put("steps", n, {"loss": [attempt], "resume": [attempt]}) for n in numbers].count(
                    False
                ) == (attempt == 1)
                for number in numbers:
                    writer.complete(number)
        with open_run(folder) as run:
            assert run.complete_steps == [0, 1, 2, 3] and run.steps()["resume"].to_list() == [0, 0, 1, 2]
            assert run.manifest.recorder.resumes == run.recorders[0].resumes == 2
            assert run.manifest.environment == {"attempt": 0}
            assert run.problems == ["step 1 is already complete: its first recording is kept"]


def test_two_attempts_never_mix_in_one_step(tmp_path: Path) -> None:
    """Rank 1 died before it finished step 1: rank 0 gives its half up, and both write the step again."""
    first = [RunWriter(tmp_path, rank=r, world_size=2) for r in (0, 1)]
    steps(first[0], 0, 1)
    steps(first[1], 0)
    for writer in first:
        writer.close()
    second = [RunWriter(tmp_path, rank=r, world_size=2) for r in (0, 1)]
    with open_run(tmp_path) as run:
        assert run.complete_steps == [0] and run.incomplete_steps == [1]
    steps(second[1], 1, sequence=11)
    second[1].close()
    with open_run(tmp_path) as run:
        assert run.incomplete_steps == [1]
    steps(second[0], 1, sequence=10)
    second[0].close()
    with open_run(tmp_path) as run:
        assert run.complete_steps == [0, 1] and run.tokens([1])["sequence"].to_list() == [10, 10, 11, 11]
        assert run.problems == []


@pytest.mark.parametrize("worlds", [(3, 1), (1, 2)])
def test_a_job_resumed_with_other_ranks(tmp_path: Path, worlds: tuple[int, int]) -> None:
    """Each step counts with the ranks it was written by; what is left of a broken one does not."""
    for world, numbers in zip(worlds, ((0, 1), (1, 2)), strict=True):
        writers = [RunWriter(tmp_path, rank=r, world_size=world) for r in range(world)]
        for writer in writers:
            # The first job's rank 1 (or its only one) never finishes step 1.
            cut = numbers[:1] if numbers[0] == 0 and writer.rank == min(1, world - 1) else numbers
            steps(writer, *cut, sequence=writer.rank)
            writer.close()
    with open_run(tmp_path) as run:
        assert run.complete_steps == [0, 1, 2] and run.manifest.world_size == worlds[1]
        count = run.sql("SELECT step, count(DISTINCT sequence) AS ranks FROM tokens GROUP BY 1 ORDER BY 1")
        assert count["ranks"].to_list() == [worlds[0], worlds[1], worlds[1]]
        assert any(f"{worlds[1]} rank(s) where there were {worlds[0]}" in p for p in run.problems)


def test_a_resumed_job_with_other_settings_is_named(tmp_path: Path) -> None:
    RunWriter(tmp_path, Manifest.model_validate({"sampling": {"temperature": 1.0}, "algorithm": {"name": "a"}})).close()
    RunWriter(tmp_path, Manifest.model_validate({"sampling": {"temperature": 0.7}, "algorithm": {"name": "a"}})).close()
    with open_run(tmp_path) as run:
        assert run.manifest.sampling.temperature == 1.0
        assert run.problems == ["resume 1: sampling differ from the manifest, which keeps the first job's"]


def test_markers_without_a_world_size_are_still_read(tmp_path: Path) -> None:
    """As runs before this field have them."""
    with RunWriter(tmp_path) as writer:
        steps(writer, 0)
    path = tmp_path / "steps/step=000000/COMPLETE.rank=0"
    marker = json.loads(path.read_text())
    del marker["world_size"], marker["dropped_tokens"]
    path.write_text(json.dumps(marker))
    with open_run(tmp_path) as run:
        assert run.complete_steps == [0]
