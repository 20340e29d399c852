"""The main job on the bundled real run: the sample has the promised size, the verdict names the rollout engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from timscope.app.demo import copy_sample
from timscope.data import BadInput, open_run
from timscope.replay.models import load_tokenizer
from timscope.replay.tiny import tiny_model


def timscope(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "timscope.app.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280)


def test_the_sample_is_a_real_run_of_the_promised_size(tmp_path: Path) -> None:
    folder = copy_sample(tmp_path / "demo")
    assert sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) < 3_000_000
    with open_run(folder) as run:
        assert run.manifest.rollout.dtype == "bfloat16" and run.manifest.trainer.dtype == "float32"
        per_step = run.sql("SELECT count(DISTINCT sequence) AS n FROM tokens GROUP BY step")["n"]
        assert per_step.len() >= 20 and per_step.min() == 16
        assert run.sql("SELECT count(*) FROM tokens WHERE rollout_logprob IS NULL OR old_logprob IS NULL").item() == 0


@pytest.mark.slow
def test_demo_names_the_rollout_engine(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    result = timscope("demo", "--out", out, "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["verdict"] == "tim" and found["side"] == "rollout engine"
    assert 5e-3 < found["metrics"]["mean_abs"] < 0.2
    parts = found["decomposition"]
    assert parts["certified"] is True and parts["mean_abs_trainer"] < 1e-4 < parts["mean_abs_rollout"]
    assert "data:image/png;base64," in (out / "report.html").read_text()


def test_demo_does_not_write_into_a_folder_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(BadInput, match="not empty"):
        copy_sample(tmp_path)


def test_a_model_whose_vocabulary_does_not_fit_is_one_line(tmp_path: Path) -> None:
    run = copy_sample(tmp_path / "demo")
    tiny_model("llama").save_pretrained(tmp_path / "tiny")
    load_tokenizer("smollm2").save_pretrained(tmp_path / "tiny")
    result = timscope("replay", run, "--model", tmp_path / "tiny")
    lines = result.stderr.strip().splitlines()
    assert result.returncode == 2 and len(lines) == 1, result.stderr
    assert "vocabulary" in lines[0] and lines[0].startswith("timscope: ")
