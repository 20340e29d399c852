"""What is no dump, or no place for a run, is one line that says what to do; and nothing that was there is lost."""

from __future__ import annotations

import json
from pathlib import Path

import dump_nemo_rl
import dump_verl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dump_slime import write_slime
from test_convert import kinds, noisy

from timscope.data import open_run
from timscope.data.errors import BadInput
from timscope.data.importers.convert import import_dump
from timscope.data.importers.registry import formats


@pytest.fixture
def nemo(tmp_path: Path) -> Path:
    (tmp_path / "nemo").mkdir()
    dump_nemo_rl.write(tmp_path / "nemo", 1, noisy(4, 6))
    return tmp_path / "nemo"


def test_one_file_of_a_slime_dump(tmp_path: Path) -> None:
    dump = write_slime(tmp_path / "d", {0: noisy(4, 6), 1: noisy(4, 6)})
    for kind, tier in (("rollout_data", "T2"), ("train_data", "T3")):
        done = import_dump(dump / kind / "1.pt", tmp_path / kind)
        assert (done.steps, done.sequences, done.imported.tier) == (1, 4, tier)


@pytest.mark.parametrize("name", ["a" * 300, "nowhere", "file/inside"])
def test_a_source_that_cannot_be_there(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="does not exist"):
        import_dump(tmp_path / name, tmp_path / "run")


@pytest.mark.parametrize("name", ["a" * 300, "", " "])
def test_a_run_that_cannot_be_there(nemo: Path, name: str) -> None:
    with pytest.raises(BadInput, match=r"cannot be used|is empty"):
        import_dump(nemo, nemo.parent / name if name.strip() else name)


@pytest.mark.parametrize("name", formats())
@pytest.mark.parametrize("source", ["folder", "file", "/dev/null"])
def test_every_format_refuses_what_is_none_of_its_own(tmp_path: Path, name: str, source: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"\xff\xfe\0")
    with pytest.raises(BadInput):
        import_dump(tmp_path / source, tmp_path / "run", format=name)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["train_data_step1.jsonl", "rollout_data/0.pt", "completions_00001.parquet"])
def test_a_folder_where_a_file_is_expected(tmp_path: Path, name: str) -> None:
    (tmp_path / "d" / name).mkdir(parents=True)
    with pytest.raises(BadInput, match="director"):
        import_dump(tmp_path / "d", tmp_path / "run")


def test_a_parquet_file_of_something_else(tmp_path: Path) -> None:
    """It has the name of a TRL dump and would come out as sequences of nothing."""
    (tmp_path / "d").mkdir()
    pq.write_table(pa.table({"a": [1]}), tmp_path / "d" / "completions_00001.parquet")
    with pytest.raises(BadInput, match="without a column completion"):
        import_dump(tmp_path / "d", tmp_path / "run")


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"log_history": [{"step": 1e999}]}', '{"log_history": [[1]]}', "\x00"]
)
def test_a_broken_trainer_state_beside_a_dump(tmp_path: Path, text: str) -> None:
    (tmp_path / "completions").mkdir()
    columns = {"step": [1], "prompt": ["p"], "completion": ["c"], "r": [1.0], "advantage": [0.1]}
    pq.write_table(pa.table(columns), tmp_path / "completions" / "completions_00001.parquet")
    (tmp_path / "trainer_state.json").write_text(text)
    done = import_dump(tmp_path, tmp_path / "run")
    assert done.sequences == 1 and "truncated-dump" in kinds(done)


@pytest.mark.parametrize("meta", ['{"global_steps": null}', '{"global_steps": "x"}', "[" * 100_000, "\x00"])
def test_a_broken_meta_file_beside_a_verl_batch(tmp_path: Path, meta: str) -> None:
    file = dump_verl.save(dump_verl.payload(noisy(4, 6), 7), tmp_path / "d")
    (file.parent / "meta.json").write_text(meta)
    assert import_dump(tmp_path / "d", tmp_path / "run").steps == 1
    with open_run(tmp_path / "run") as run:
        assert run.complete_steps == [7]  # by the folder's name


def test_digits_of_other_scripts_are_no_numbers(tmp_path: Path) -> None:
    file = dump_verl.save(dump_verl.payload(noisy(4, 6), 7), tmp_path / "d")
    inner = file.parent.rename(file.parent.with_name("²"))
    assert import_dump(inner, tmp_path / "run").sequences == 4


def test_overwriting_forgets_what_the_old_recorder_said(nemo: Path) -> None:
    run_path = nemo.parent / "run"
    import_dump(nemo, run_path)
    state = run_path / "recorder" / "rank=0.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "errors": ["of the old run"], "resumes": 5}))
    import_dump(nemo, run_path, overwrite=True)
    with open_run(run_path) as run:
        assert run.problems == [] and run.recorders[0].resumes == 0
