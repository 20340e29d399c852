"""A run stays readable to its last complete step, and damage is named in one line instead of being read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from timscope.data import BadInput, Manifest, ReplayManifest, ReplayWriter, RunWriter, open_run


def write_run(folder: Path, steps: int = 3, **options: object) -> RunWriter:
    writer = RunWriter(folder, Manifest(), **options)  # type: ignore[arg-type]
    for step in range(steps):
        writer.put("tokens", step, {"sequence": [0, 0], "position": [4, 5], "rollout_logprob": [-0.5, -1.5 - step]})
        writer.put("sequences", step, {"sequence": [0], "weight_version": [step], "advantage": [0.5]})
        writer.complete(step)
    writer.close()
    return writer


def test_missing_directory_and_no_run_are_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        open_run(tmp_path / "nowhere")
    with pytest.raises(BadInput, match=r"no manifest\.json"):
        open_run(tmp_path)


def test_step_without_marker_is_left_out(tmp_path: Path) -> None:
    write_run(tmp_path)
    (tmp_path / "steps/step=000001/COMPLETE.rank=0").unlink()
    with open_run(tmp_path) as run:
        assert run.complete_steps == [0, 2] and run.incomplete_steps == [1]
        assert run.tokens()["step"].unique().to_list() == [0, 2]
        assert "step 1" in run.problems[0]


@pytest.mark.parametrize("keep", [0, 10, -1])
def test_truncated_part_is_refused_or_skipped(tmp_path: Path, keep: int) -> None:
    write_run(tmp_path)
    part = tmp_path / "tokens/step=000001/rank=0-000.parquet"
    part.write_bytes(part.read_bytes()[:keep])
    with pytest.raises(BadInput, match=r"step=000001.*truncated"):
        open_run(tmp_path)
    with open_run(tmp_path, skip_damaged=True) as run:
        assert run.complete_steps == [0, 2]
    part.unlink()
    with pytest.raises(BadInput, match="is missing"):
        open_run(tmp_path)


def test_altered_bytes_of_the_same_length_are_a_clear_error(tmp_path: Path) -> None:
    write_run(tmp_path)
    part = tmp_path / "tokens/step=000001/rank=0-000.parquet"
    part.write_bytes(b"\0" * part.stat().st_size)
    with pytest.raises(BadInput, match="failed"), open_run(tmp_path) as run:
        run.tokens()


def test_schema_from_the_future_and_broken_manifest(tmp_path: Path) -> None:
    write_run(tmp_path)
    path = tmp_path / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "schema_version": 99}))
    with pytest.raises(BadInput, match="upgrade timscope"):
        open_run(tmp_path)
    path.write_text(json.dumps({**manifest, "world_size": "many"}))
    with pytest.raises(BadInput, match="world_size"):
        open_run(tmp_path)
    path.write_text("{")
    with pytest.raises(BadInput, match="not valid JSON"):
        open_run(tmp_path)


def test_marker_cannot_point_outside_the_run(tmp_path: Path) -> None:
    write_run(tmp_path)
    marker = tmp_path / "steps/step=000000/COMPLETE.rank=0"
    marker.write_text(marker.read_text().replace("tokens/step=000000", "../../elsewhere"))
    with pytest.raises(BadInput, match="out of the run directory"):
        open_run(tmp_path)


def test_step_counts_only_when_every_rank_finished(tmp_path: Path) -> None:
    for rank in (0, 1):
        writer = RunWriter(tmp_path, Manifest(), rank=rank, world_size=2)
        for step in range(2 - rank):
            writer.put("tokens", step, {"sequence": [rank], "position": [3]})
            writer.complete(step)
        writer.close()
    with open_run(tmp_path) as run:
        assert run.complete_steps == [0] and run.incomplete_steps == [1]
        assert run.tokens()["sequence"].to_list() == [0, 1]


def test_resume_keeps_complete_steps_and_orphans_apart(tmp_path: Path) -> None:
    write_run(tmp_path, steps=2)
    (tmp_path / "steps/step=000001/COMPLETE.rank=0").unlink()  # a crash before the marker
    writer = write_run(tmp_path, steps=3)
    assert writer.manifest.recorder.resumes == 1
    with open_run(tmp_path) as run:
        assert run.complete_steps == [0, 1, 2]
        assert run.tokens().height == 6  # the orphan part of step 1 is not read twice
    assert (tmp_path / "tokens/step=000001/rank=0-001.parquet").exists()


def test_write_error_is_reported_once_and_never_raised(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = RunWriter(tmp_path, Manifest())
    for step in range(3):
        writer.put("tokens", step, {"sequence": [0, 1], "position": [0]})
        writer.complete(step)
    writer.close()
    assert len([r for r in caplog.records if r.levelname == "ERROR"]) == 1
    with open_run(tmp_path) as run:
        assert run.complete_steps == [] and len(run.manifest.recorder.errors) == 3
    strict = RunWriter(tmp_path / "strict", Manifest(), strict=True)
    strict.put("tokens", 0, {"sequence": [0, 1], "position": [0]})
    with pytest.raises(BadInput, match="rows"):
        strict.close()


def test_full_queue_drops_and_counts(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, Manifest(), queue_size=1, overflow="drop")
    taken = [writer.put("steps", 0, {"loss": np.zeros(200_000)}) for _ in range(50)]
    writer.complete(0)
    writer.close()
    assert 0 < sum(taken) < 50
    with open_run(tmp_path) as run:
        assert run.manifest.recorder.drops == 50 - sum(taken)
        assert "dropped" in run.problems[0]


def test_bad_sql_is_bad_input(tmp_path: Path) -> None:
    write_run(tmp_path)
    with open_run(tmp_path) as run, pytest.raises(BadInput, match="nosuch"):
        run.sql("select nosuch from tokens")


def test_replay_joins_by_key_and_resumes(tmp_path: Path) -> None:
    write_run(tmp_path)
    manifest = ReplayManifest(name="exact", engine="exact", dtype="float32")
    writer = ReplayWriter(tmp_path, manifest)
    writer.put(0, {"sequence": [0, 0], "position": [4, 5], "exact_logprob": np.array([-0.25, -1.0], np.float32)})
    writer.complete(0)
    writer.write_certificate({"exact": True})
    with open_run(tmp_path) as run:
        frame = run.tokens()
        assert frame["exact_logprob"].to_list() == [-0.25, -1.0, None, None, None, None]
        assert frame["advantage"].to_list() == [0.5] * 6
        assert run.replay("exact").certified and run.replay("exact").complete_steps == [0]
    assert ReplayWriter(tmp_path, manifest).complete_steps == {0}
    with pytest.raises(BadInput, match="exists with dtype"):
        ReplayWriter(tmp_path, manifest.model_copy(update={"dtype": "bfloat16"}))
    with pytest.raises(BadInput, match="cannot name a replay"):
        ReplayWriter(tmp_path, manifest.model_copy(update={"name": "../x"}))


def test_run_in_memory_through_fsspec() -> None:
    url = "memory://bucket/run-a"
    with RunWriter(url, Manifest(), strict=True) as writer:
        writer.put("tokens", 0, {"sequence": [0], "position": [3], "old_logprob": [-0.5]})
        writer.complete(0)
    with open_run(url) as run:
        assert run.tokens()["old_logprob"].to_list() == [-0.5]


@pytest.mark.parametrize("where", ["run[1]", "run*", "run?", "file://run[1]", "memory://run[1]"])
def test_a_run_whose_name_is_a_pattern_reads_its_own_files(tmp_path: Path, where: str) -> None:
    """DuckDB expands *, ? and [: run* would show the tokens of run1 as its own."""
    scheme, _, name = where.rpartition("://")
    root = f"{scheme}://{tmp_path}" if scheme else str(tmp_path)
    for number, place in enumerate((f"{root}/run1", f"{root}/{name}")):
        with RunWriter(place) as writer:
            writer.put("tokens", 0, {"sequence": [0], "position": [0], "token_id": [number], "mask": [True]})
            writer.complete(0)
    with open_run(f"{root}/{name}") as run:
        assert run.tokens()["token_id"].to_list() == [1]
