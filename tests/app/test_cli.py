"""The command line as a user meets it: bad input is one line and exit code 2, findings are exit code 1."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from timscope.data import Manifest, RunWriter
from timscope.data.manifest import Algorithm, LogprobMode


def timscope(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "timscope.app.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def write_run(
    folder: Path, *, rollout: bool = True, noise: float = 0.03, sequences: int = 12, length: int = 20
) -> Path:
    """A run whose old log-probs differ from the rollout's by plain noise."""
    rng = np.random.default_rng(0)
    manifest = Manifest(
        algorithm=Algorithm(name="grpo", loss_mode="recompute"), logprobs={"old_logprob": LogprobMode(mode="raw")}
    )
    with RunWriter(folder, manifest, strict=True) as writer:
        for step in range(3):
            n = sequences * length
            old = -rng.exponential(1.0, n) - 0.3
            d = rng.normal(0, noise, n)
            columns = {
                "sequence": np.repeat(np.arange(sequences), length),
                "position": np.tile(np.arange(5, 5 + length), sequences),
                "token_id": rng.integers(0, 100, n),
                "mask": np.ones(n, bool),
                "old_logprob": old.astype(np.float32),
            }
            if rollout:
                columns["rollout_logprob"] = (old - d + noise**2 / 2).astype(np.float32)
            writer.put("tokens", step, columns)
            writer.put(
                "sequences", step, {"sequence": np.arange(sequences), "prompt_ids": [[1, 2, 3, 4, 5]] * sequences}
            )
            writer.put("steps", step, {"loss": [0.1 * step]})
            writer.complete(step)
    return folder


def assert_one_line(result: subprocess.CompletedProcess[str], *words: str) -> None:
    assert result.returncode == 2, (result.returncode, result.stderr)
    assert "Traceback" not in result.stderr
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("timscope: "), result.stderr
    for word in words:
        assert word in lines[0]


@pytest.mark.parametrize("command", [["diagnose"], ["report"], ["query"], ["replay"]])
def test_missing_directory(tmp_path: Path, command: list[str]) -> None:
    sql = ["select 1"] if command == ["query"] else []
    assert_one_line(timscope(*command, tmp_path / "nowhere", *sql), "does not exist")


@pytest.mark.parametrize("command", [["diagnose"], ["report"], ["replay"]])
def test_truncated_part(tmp_path: Path, command: list[str]) -> None:
    run = write_run(tmp_path / "run")
    part = run / "tokens/step=000001/rank=0-000.parquet"
    part.write_bytes(part.read_bytes()[:100])
    assert_one_line(timscope(*command, run), "truncated", "step=000001")


def test_truncated_part_can_be_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / "tokens/step=000001/rank=0-000.parquet").write_bytes(b"")
    result = timscope("diagnose", run, "--skip-damaged", "--json")
    assert result.returncode == 1
    assert "step 1 is left out" in json.loads(result.stdout)["problems"][0]


def test_run_without_rollout_logprobs(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rollout=False)
    assert_one_line(timscope("diagnose", run), "rollout_logprob")
    assert_one_line(timscope("report", run, "-o", tmp_path / "r.html"), "rollout_logprob")
    assert not (tmp_path / "r.html").exists()


def test_bad_sql_and_bad_options(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    assert_one_line(timscope("query", run, "select nosuch from tokens"), "nosuch")
    assert_one_line(timscope("query", run, "selec 1"))
    assert_one_line(timscope("replay", run, "--steps", "two"), "0,3,5-9")


def test_query_json_and_csv(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    sql = "SELECT step, count(*) AS n FROM tokens GROUP BY step ORDER BY step"
    found = json.loads(timscope("query", run, sql, "--json").stdout)
    assert found["rows"] == [{"step": s, "n": 240} for s in range(3)]
    assert timscope("query", run, sql, "--csv").stdout.splitlines() == ["step,n", "0,240", "1,240", "2,240"]


def test_diagnose_json_keeps_the_contract(tmp_path: Path) -> None:
    result = timscope("diagnose", write_run(tmp_path / "run"), "--json")
    found = json.loads(result.stdout)
    assert result.returncode == 1 and found["verdict"] == "tim"
    assert {"verdict", "causes", "decomposition", "metrics"} <= set(found)


def test_report_is_one_file_that_loads_nothing(tmp_path: Path) -> None:
    out = tmp_path / "deep/er/report.html"
    result = timscope("report", write_run(tmp_path / "run"), "-o", out, "--json")
    assert result.returncode == 0, result.stderr
    page = out.read_text()
    assert json.loads(result.stdout)["bytes"] == len(page.encode())
    assert page.count("data:image/png;base64,") >= 2
    for outside in ("http://", "https://", "<script", "<link"):
        assert outside not in page


def test_version_and_help() -> None:
    assert timscope("--version").stdout.strip()
    helped = timscope("--help")
    for command in ("demo", "replay", "diagnose", "report", "query", "certify"):
        assert command in helped.stdout
