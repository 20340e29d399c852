"""One sample of odd types, sizes or characters costs itself, never the import: it is left out, named and counted."""

from __future__ import annotations

import json
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dump_nemo_rl
import dump_prime_rl
import pytest
import torch
from dump_slime import write_slime
from test_convert import kinds, noisy

from timscope.data import open_run
from timscope.data.errors import BadInput
from timscope.data.importers.base import Findings
from timscope.data.importers.convert import Summary, import_dump
from timscope.data.importers.pickles import Damaged
from timscope.data.importers.unpickle import load_pickle

HUGE = 10**400  # no float holds it
ODD: dict[str, tuple[str, Any]] = {
    "a huge log-prob": ("generation_logprobs", [[HUGE] * 8]),
    "a huge length": ("input_lengths", [HUGE]),
    "an infinite length": ("input_lengths", [float("inf")]),
    "NaN as length": ("input_lengths", [float("nan")]),
    "an id beyond 32 bits": ("token_ids", [[2**40] * 10]),
    "a mask of maps": ("token_loss_mask", [{"a": 1}]),
    "a word that UTF-8 lacks": ("rewards", ["\ud800"]),
    "lines in a word": ("rewards", ["a\nb"]),
}


def change(file: Path, line: int, make: Callable[[dict[str, Any]], None]) -> None:
    """Change one line of a JSON file."""
    written = [json.loads(text) for text in file.read_text().splitlines()]
    make(written[line])
    file.write_text("".join(json.dumps(record) + "\n" for record in written))


def others_are_there(done: Summary, run_path: Path, left: int) -> None:
    with open_run(run_path) as run:
        assert run.sequences().height == left and not run.problems
        assert run.manifest.imported == done.imported
    assert all("\n" not in str(f.evidence) for f in done.imported.findings)


@pytest.mark.parametrize("name", ODD)
def test_in_a_file_of_lines(tmp_path: Path, name: str) -> None:
    field, value = ODD[name]
    (tmp_path / "d").mkdir()
    file = dump_nemo_rl.write(tmp_path / "d", 1, noisy(4, 6))
    change(file, 1, lambda record: record.update({field: value}))
    done = import_dump(tmp_path / "d", tmp_path / "run")
    others_are_there(done, tmp_path / "run", 3)
    assert "integrity" in kinds(done) and done.damaged


@pytest.mark.parametrize(
    "fault", [("tokens", [2**40, 1, 2, 3]), ("index", HUGE), ("reward", HUGE), ("response_length", "six")]
)
def test_in_a_pickled_file(tmp_path: Path, fault: tuple[str, Any]) -> None:
    name, value = fault
    dump = write_slime(tmp_path / "d", {0: noisy(4, 6)}, train=False)
    payload = torch.load(dump / "rollout_data" / "0.pt", weights_only=False)
    payload["samples"][2][name] = value
    torch.save(payload, dump / "rollout_data" / "0.pt")
    done = import_dump(dump, tmp_path / "run")
    others_are_there(done, tmp_path / "run", 4 if name == "index" else 3)


def test_in_the_traces_beside_a_dump(tmp_path: Path) -> None:
    samples = noisy(4, 6)
    dump_prime_rl.write(tmp_path / "d", 1, [samples])
    traces = [dump_prime_rl.trace(s, "g") for s in samples]
    traces[0]["run"]["work"]["policy"]["start"] = ["no", "version"]
    traces[1]["traces"][0]["calls"][-1]["finish_reason"] = 1.5
    dump_prime_rl.write_traces(tmp_path / "d", 1, traces)
    done = import_dump(tmp_path / "d", tmp_path / "run")
    with open_run(tmp_path / "run") as run:
        assert run.sequences()["group_id"].to_list() == [None, "g", "g", "g"]
    assert "integrity" in kinds(done)


@pytest.mark.parametrize("step", [-1, 2**31, HUGE])
def test_a_metric_line_of_no_step(tmp_path: Path, step: int) -> None:
    """Its folder could not be read back: the row would be lost without a word."""
    lines = [{"step": s, "data": {"actor/loss": 1.0}} for s in (1, step, 2)]
    lines[0]["data"]["big"] = HUGE
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = import_dump(tmp_path / "log.jsonl", tmp_path / "run")
    with open_run(tmp_path / "run") as run:
        assert run.steps()["loss"].to_list() == [1.0, 1.0]
    assert sum(f.count for f in done.imported.findings if f.kind == "integrity") == 2


def test_a_file_named_after_a_time_is_no_step(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    line = {"input": "a", "output": "b", "score": 1.0}
    (tmp_path / "d" / "1700000000000.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(BadInput, match="1700000000000 is no step"):
        import_dump(tmp_path / "d", tmp_path / "run")


def test_evidence_is_what_json_holds() -> None:
    findings = Findings()
    findings.note("integrity", "x", place="a\ud800\nb", value={"k": [Path("p"), ("t", [[[[1]]]])]}, number=1.5)
    (found,) = findings.listed()
    assert json.loads(found.model_dump_json())["evidence"]["place"] == "a\\ud800 b"


def nested_key(end: bytes) -> bytes:
    return b"\x80\x04" + end.replace(b"KEY", b")" + b"\x85" * 200_000)


@pytest.mark.parametrize("end", [b"}KEYNs.", b"\x8f(KEY\x90.", b"(KEY\x91.", b"cbuiltins\nset\n(KEYl\x85R."])
def test_a_key_nested_without_end_does_not_end_python(end: bytes) -> None:
    """Python hashes a tuple by recursion in C: such a key overflows its stack. In a process of its own, to see."""
    code = (
        "import sys\nfrom timscope.data.importers.unpickle import load_pickle\n"
        "try: load_pickle(memoryview(sys.stdin.buffer.read()), 'x')\nexcept ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], input=nested_key(end), capture_output=True, check=False)
    assert done.returncode == 0 and b"nested too deeply" in done.stdout


def test_keys_of_plain_tuples_are_read() -> None:
    value = {(1, ("a", 2.0)): {frozenset({3}), b"x"}}
    assert load_pickle(memoryview(pickle.dumps(value)), "x") == value
    with pytest.raises(Damaged):
        load_pickle(memoryview(b"\x80\x04}](" + b"G" + struct.pack(">d", 1.0) + b"eNs."), "x")
