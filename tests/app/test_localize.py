"""`timscope localize` as a user meets it: the JSON contract, the files, exit codes; on the bundled real run too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from timscope.app.demo import copy_sample
from timscope.data import Manifest, RunWriter
from timscope.replay.tiny import tiny_model
from timscope.replay.weights import model_digest


def timscope(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "timscope.app.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    model = tiny_model("llama")
    model.save_pretrained(folder / "model")
    weights = [{"version": 0, "digest": model_digest(model), "source": str(folder / "model")}]
    said = {"model": {"vocab_size": 391, "dtype": "float32"}, "trainer": {"dtype": "float32"}, "weights": weights}
    rng = np.random.default_rng(0)
    with RunWriter(folder / "run", Manifest.model_validate(said), strict=True) as writer:
        rows = {"sequence": np.arange(3), "prompt_ids": [[5, 6, 7, 8]] * 3, "weight_version": np.zeros(3, int)}
        writer.put("sequences", 0, rows)
        tokens = {"sequence": np.repeat(np.arange(3), 9), "position": np.tile(np.arange(4, 13), 3)}
        tokens |= {"token_id": rng.integers(3, 391, 27), "rollout_logprob": rng.normal(-6, 1, 27).astype(np.float32)}
        writer.put("tokens", 0, tokens)
        writer.complete(0)
    return folder / "run"


SITE = {"order", "site", "op", "layer", "module", "elements", "max_abs", "rms", "relative", "equal_share"}
SWAP = {"name", "group", "what", "state", "removed_variance", "removed_mean_abs", "explained", "size", "equal_share"}


def check_contract(said: dict) -> None:  # type: ignore[type-arg]
    assert {"step", "tokens", "sequences", "left", "right", "parted", "first", "sites", "logprob", "swaps"} <= set(said)
    assert all(set(row) >= SITE | {"own_rms", "own_equal_share"} for row in said["sites"])
    assert said["first"] in said["sites"]
    found = said["swaps"]
    assert {"start", "target", "mismatch", "ranking", "together", "best", "control", "control_passed"} <= set(found)
    assert all(set(row) >= SWAP for row in found["ranking"])
    assert found["control_passed"] is True and found["control"]["removed"] == 0.0
    shares = [row["removed_variance"]["value"] for row in found["ranking"] if row["state"] != "nothing"]
    assert shares == sorted(shares, reverse=True)


def test_json_and_files(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    options = ("--swaps", "kv-fp8,weights-int8", "--resamples", 50, "--out", out)
    result = timscope("localize", run, "--step", 0, *options, "--json")
    assert result.returncode == 1, result.stderr
    said = json.loads(result.stdout)
    check_contract(said)
    assert said["first"]["site"] == "layers.0.input_layernorm"
    assert all(Path(path).is_file() for path in said["files"]) and len(said["files"]) == 8
    assert (out / "sites.png").read_bytes().startswith(b"\x89PNG") and b"<svg" in (out / "swaps.svg").read_bytes()
    assert pl.read_parquet(out / "sites.parquet").height == len(said["sites"])
    assert pl.read_parquet(out / "tokens.parquet").columns[:3] == ["sequence", "position", "token_id"]
    assert pl.read_parquet(out / "swaps.parquet")["name"].to_list()[-1] == "self"


def test_text_names_the_first_module(run: Path) -> None:
    result = timscope("localize", run, "--step", 0, "--right", "exact-bfloat16", "--target", "right", "--swaps", "none")
    assert result.returncode == 1, result.stderr
    assert "they part at embed_tokens" in result.stdout and "no swaps were ranked" in result.stdout


def test_equal_witnesses_exit_with_0(run: Path) -> None:
    result = timscope("localize", run, "--step", 0, "--right", "exact", "--swaps", "none", "--json")
    said = json.loads(result.stdout)
    assert result.returncode == 0 and said["parted"] is False and said["first"] is None and said["swaps"] is None


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--step", "3"], "step 3"),
        (["--step", "0", "--left", "vllm"], "vllm"),
        (["--step", "0", "--swaps", "magic"], "magic"),
        (["--step", "0", "--target", "C"], "old_logprob"),
    ],
)
def test_bad_input_is_one_line(run: Path, options: list[str], word: str) -> None:
    result = timscope("localize", run, *options)
    lines = result.stderr.strip().splitlines()
    assert result.returncode == 2 and len(lines) == 1 and lines[0].startswith("timscope: ") and word in lines[0]


@pytest.mark.slow
def test_the_bundled_run(tmp_path: Path) -> None:
    folder = copy_sample(tmp_path / "demo")
    options = ("--swaps", "logits-bf16", "--sequences", 4)
    result = timscope("localize", folder, "--step", 1, *options, "--json")
    assert result.returncode == 1, result.stderr
    said = json.loads(result.stdout)
    check_contract(said)
    assert said["right"]["padding"] == {"batch": 4, "shifted": True}
    # The trainer's numbers are reproduced to float32 noise, and the rollout engine's are four orders further away.
    assert said["trainer_check"]["max_abs"] < 1e-4
    assert said["swaps"]["mismatch"]["mean_abs"] > 5e-3
    assert {row["site"] for row in said["sites"]} >= {"layers.29.attention", "norm", "logits", "log_softmax"}
