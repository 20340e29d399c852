"""`timscope import` as a user meets it: a dump in, a run out, findings said, exit codes kept."""

from __future__ import annotations

import json
import pickle
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from timscope.app import cli
from timscope.data import open_run

PAIRS = 30


@dataclass
class Result:
    returncode: int
    stdout: str
    stderr: str


Timscope = Callable[..., Result]


@pytest.fixture
def timscope(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Timscope:
    """The console script's entry point, in this process: a process a call would take longer than the tests."""

    def call(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["timscope", *map(str, arguments)])
        code: Any = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        said = capsys.readouterr()
        return Result(code, said.out, said.err)

    return call


def write_dump(folder: Path, steps: int = 2, *, cut: bool = False) -> Path:
    """NeMo-RL's JSON lines: 8 samples a step, 4 prompt and 30 response tokens; `cut` breaks the last line off."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for step in range(1, steps + 1):
        lines = []
        for index in range(8):
            rollout = -rng.exponential(1.0, PAIRS) - 0.2
            head: list[Any] = [0.0] * 4
            lines.append(
                json.dumps(
                    {
                        "input_lengths": [4 + PAIRS],
                        "token_ids": [rng.integers(0, 90, 4 + PAIRS).tolist()],
                        "token_loss_mask": [[0] * 4 + [1] * PAIRS],
                        "sample_loss_mask": [1.0],
                        "rewards": [float(index % 2)],
                        "advantages": [[index - 3.5] * (4 + PAIRS)],
                        "generation_logprobs": [head + rollout.tolist()],
                        "prev_logprobs": [head + (rollout + rng.normal(0, 0.01, PAIRS)).tolist()],
                        "idx": index,
                    }
                )
            )
        text = "\n".join(lines) + "\n"
        (folder / f"train_data_step{step}.jsonl").write_text(text[:-200] if cut and step == steps else text)
    return folder


def test_import_then_query(timscope: Timscope, tmp_path: Path) -> None:
    result = timscope("import", write_dump(tmp_path / "dump"), tmp_path / "run")
    assert result.returncode == 0, result.stderr
    assert "nemo-rl (T3): 2 steps, 16 sequences, 480 response tokens" in result.stdout
    with open_run(tmp_path / "run") as run:
        assert run.complete_steps == [1, 2]
        assert run.sql("SELECT count(*) n FROM tokens WHERE abs(old_logprob - rollout_logprob) < 0.1")["n"][0] == 480


def test_json(timscope: Timscope, tmp_path: Path) -> None:
    result = timscope("import", write_dump(tmp_path / "dump", steps=1), tmp_path / "run", "--json")
    said = json.loads(result.stdout)
    assert result.returncode == 0
    assert (said["format"], said["tier"], said["steps"], said["tokens"]) == ("nemo-rl", "T3", 1, 240)
    assert said["cannot"] == {"signals": "the dump holds one step alone"} and said["damaged"] is False


def test_a_cut_dump_is_imported_and_exits_with_1(timscope: Timscope, tmp_path: Path) -> None:
    result = timscope("import", write_dump(tmp_path / "dump", cut=True), tmp_path / "run", "--json")
    said = json.loads(result.stdout)
    assert result.returncode == 1 and said["damaged"] is True
    (finding,) = [f for f in said["findings"] if f["kind"] == "truncated-dump"]
    assert finding["evidence"]["file"] == "train_data_step2.jsonl" and finding["evidence"]["line"] == 8
    assert said["sequences"] == 15


def test_again_goes_on_and_overwrite_starts_over(timscope: Timscope, tmp_path: Path) -> None:
    write_dump(tmp_path / "dump", steps=1)
    timscope("import", tmp_path / "dump", tmp_path / "run")
    write_dump(tmp_path / "dump", steps=2)
    again = json.loads(timscope("import", tmp_path / "dump", tmp_path / "run", "--json").stdout)
    assert (again["resumed"], again["steps"]) == (1, 2)
    over = json.loads(timscope("import", tmp_path / "dump", tmp_path / "run", "--overwrite", "--json").stdout)
    assert (over["resumed"], over["steps"]) == (0, 2)


def test_bad_input_is_one_line(timscope: Timscope, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    system = pickle.dumps({"a": 1})[:-1] + b"0cos\nsystem\nX" + struct.pack("<I", 4) + b"true\x85R."
    (tmp_path / "global_step_1_training_input.pkl").write_bytes(system)
    cases = [
        ((tmp_path / "nowhere",), "does not exist"),
        ((tmp_path / "empty",), "not a dump that is known"),
        ((tmp_path / "global_step_1_training_input.pkl",), "os.system"),
        ((tmp_path / "empty", "--format", "what"), "there are slime"),
    ]
    for (source, *options), word in cases:
        result = timscope("import", source, tmp_path / "run", *options)
        lines = result.stderr.strip().splitlines()
        assert result.returncode == 2 and len(lines) == 1 and word in lines[0], (result.stdout, result.stderr)
        assert not (tmp_path / "run").exists()


def test_list_of_formats(timscope: Timscope) -> None:
    result = timscope("import", "--list")
    assert result.returncode == 0
    for name in ("slime", "skyrl", "verl-batch", "nemo-rl", "prime-rl", "trl-parquet"):
        assert name in result.stdout


def test_a_place_that_cannot_be_written_is_one_line(timscope: Timscope, tmp_path: Path) -> None:
    """No right, no room, a file in the way: OSErrors all."""
    (tmp_path / "file").touch()
    result = timscope("import", write_dump(tmp_path / "dump"), tmp_path / "file" / "run")
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
    assert "cannot be written (Not a directory): give a directory" in result.stderr


def test_a_text_dump_is_refused_by_replay_with_the_reason(timscope: Timscope, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "1.jsonl").write_text('{"input": "a", "output": "b", "score": 1.0}\n')
    assert timscope("import", tmp_path / "d", tmp_path / "run").returncode == 0
    result = timscope("replay", tmp_path / "run", "--model", "any")
    assert result.returncode == 2 and "text does not give them back" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
