"""Replays of a run that holds its weights: every step under the version that sampled it, each proven by its digest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from timscope.data import BadInput, Manifest, RunWriter, open_run
from timscope.data.digest import fingerprint
from timscope.data.storage import Storage
from timscope.data.weights import RawTensor, WeightStore
from timscope.replay.exact import ExactEngine
from timscope.replay.models import model_with, recorded_config
from timscope.replay.paths import random_texts
from timscope.replay.replay_run import replay_run
from timscope.replay.scoring import score
from timscope.replay.tiny import tiny_model
from timscope.replay.weights import model_digest, set_weights, weight_items

TEXTS = random_texts(391, [5, 3, 17], 4)


def version_model(version: int, tied: bool = False, dtype: torch.dtype = torch.float32) -> Any:
    """The policy after `version` updates."""
    model = tiny_model("llama", tied=tied)
    generator = torch.Generator().manual_seed(version)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 1e-3 * version)
    return model.to(dtype)


def raw(model: Any) -> dict[str, RawTensor]:
    return {name: RawTensor(dtype, tuple(shape), bytes(data)) for name, dtype, shape, data in weight_items(model)}


def record(path: Path, sampled: dict[int, list[int]], stored: list[int], **options: Any) -> Path:
    """A run whose step s has one sequence under each version of sampled[s]; versions `stored` are kept as a chain."""
    tied, dtype = options.pop("tied", False), options.pop("dtype", torch.float32)
    model = version_model(0, tied, dtype)
    name = str(dtype).removeprefix("torch.")
    fields = {
        "model": {"dtype": name, "architecture": "LlamaForCausalLM", "config": model.config.to_dict()},
        "trainer": {"dtype": name},
        "weights": [{"version": 0, "digest": model_digest(model)}],
        **options,
    }
    with RunWriter(path, Manifest.model_validate(fields), strict=True) as writer:
        store, held = WeightStore(Storage(path)), None
        for version in stored:
            new = raw(version_model(version, tied, dtype))
            entry = store.write_delta(version, new, *held) if held else store.write_full(version, new)
            held = entry, new
        for step, versions in sampled.items():
            put_step(writer, step, versions)
    return path


def put_step(writer: RunWriter, step: int, versions: list[int]) -> None:
    count, response = len(versions), TEXTS.response
    rows = {"sequence": np.arange(count), "prompt_ids": TEXTS.prompts[:count], "weight_version": versions}
    writer.put("sequences", step, rows)
    ids = {
        "sequence": np.repeat(np.arange(count), response),
        "position": np.concatenate([len(p) + np.arange(response) for p in TEXTS.prompts[:count]]),
        "token_id": np.concatenate(TEXTS.completions[:count]),
    }
    writer.put("tokens", step, ids)
    mark = fingerprint(weight_items(version_model(step)))
    writer.put("steps", step, {"loss": [0.0], "weight_version": [step], "weight_digest": [mark], "resume": [0]})
    writer.complete(step)


def exact(version: int, rows: int, **which: Any) -> list[np.ndarray[Any, Any]]:
    model = version_model(version, **which)
    with ExactEngine(model):
        scores = score(model, TEXTS.prompts[:rows], TEXTS.completions[:rows])
    return [s.logprob for s in scores]


def replayed(path: Path, step: int, column: str = "exact_logprob") -> list[np.ndarray[Any, Any]]:
    with open_run(path) as run:
        frame = run.tokens([step])
    return np.split(frame[column].to_numpy(), frame.height // TEXTS.response)


def same(a: list[np.ndarray[Any, Any]], b: list[np.ndarray[Any, Any]]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_every_step_is_scored_under_its_own_version(tmp_path: Path) -> None:
    path = record(tmp_path / "run", {1: [0, 0], 2: [1, 1], 3: [3, 3]}, [0, 1, 2, 3])
    seen: list[int] = []
    folder = replay_run(path, progress=seen.append)
    for step, version in ((1, 0), (2, 1), (3, 3)):
        assert same(replayed(path, step), exact(version, 2))
    assert not same(replayed(path, 3), exact(0, 2)), "other weights must give other numbers"
    with open_run(path) as run:
        replay = run.replay("exact")
        said = replay.manifest.model_dump()
        digests = {v: run.weights(v).entry.digest for v in (0, 1, 3)}
    assert replay.complete_steps == [1, 2, 3] and replay.certified and replay.manifest.model_source == "weights"
    assert said["model_digest"] is None
    assert [(w["version"], w["digest"]) for w in said["weights"]] == list(digests.items())
    assert digests == {v: model_digest(version_model(v)) for v in digests}
    stamp = json.loads((folder / "certificate.json").read_text())["environment"]
    assert stamp["weight_version"] == 0 and stamp["model_digest"] == digests[0]
    assert sum(seen) == 3 * 2 * TEXTS.response


def test_it_can_be_made_in_several_calls_and_by_the_plain_engine(tmp_path: Path) -> None:
    path = record(tmp_path / "run", {1: [0], 2: [1], 3: [2]}, [0, 1, 2])
    replay_run(path, steps=[2], certificate=False, progress=False)
    stamps = {p: p.stat().st_mtime_ns for p in (path / "replays").rglob("*.parquet")}
    seen: list[int] = []
    replay_run(path, certificate=False, progress=seen.append)
    assert sum(seen) == 2 * TEXTS.response and all(p.stat().st_mtime_ns == t for p, t in stamps.items())
    replay_run(path, certificate=False, progress=False)
    with open_run(path) as run:
        said = run.replay("exact").manifest.model_dump()
    assert [w["version"] for w in said["weights"]] == [0, 1, 2]
    replay_run(path, engine="hf", progress=False)
    for step in (1, 2, 3):
        assert same(replayed(path, step), exact(step - 1, 1))
        assert np.allclose(replayed(path, step, "hf_logprob"), replayed(path, step), atol=1e-4)


def test_a_step_of_several_versions_is_put_together(tmp_path: Path) -> None:
    path = record(tmp_path / "run", {5: [3, 1, 3], 6: [1, 1]}, [1, 2, 3])
    replay_run(path, certificate=False, progress=False)
    three, one = exact(3, 3), exact(1, 3)
    assert same(replayed(path, 5), [three[0], one[1], three[2]])
    assert same(replayed(path, 6), one[:2])


@pytest.mark.parametrize("tied", [False, True])
def test_bfloat16_weights_and_rounding_on_the_way(tmp_path: Path, tied: bool) -> None:
    half = record(tmp_path / "half", {1: [0], 2: [1]}, [0, 1], dtype=torch.bfloat16, tied=tied)
    full = record(tmp_path / "full", {1: [0], 2: [1]}, [0, 1], tied=tied)
    replay_run(half, certificate=False, progress=False)
    replay_run(full, dtype="bfloat16", certificate=False, progress=False)
    for step in (1, 2):
        wanted = exact(step - 1, 1, dtype=torch.bfloat16, tied=tied)
        assert same(replayed(half, step), wanted) and same(replayed(full, step), wanted)


def test_steps_without_stored_weights(tmp_path: Path) -> None:
    path = record(tmp_path / "run", {1: [0], 2: [1], 3: [2], 4: [2, 1]}, [1])
    replay_run(path, certificate=False, progress=False)
    with open_run(path) as run:
        assert run.replay("exact").complete_steps == [2]
    with pytest.raises(BadInput, match=r"step 3 of .* sampled under weights version 2, which is not stored; .* are 1:"):
        replay_run(path, steps=[2, 3])
    with pytest.raises(BadInput, match="step 4 of"):
        replay_run(path, steps=[4])
    with pytest.raises(BadInput, match="step 9 is not a complete step"):
        replay_run(path, steps=[9])


def test_the_first_version_may_come_from_its_source(tmp_path: Path) -> None:
    version_model(0).save_pretrained(tmp_path / "model")
    first = {"version": 0, "source": str(tmp_path / "model"), "digest": model_digest(version_model(0))}
    path = record(tmp_path / "run", {1: [0], 2: [1], 3: [2]}, [2, 1], weights=[first])
    replay_run(path, certificate=False, progress=False)
    for step in (1, 2, 3):
        assert same(replayed(path, step), exact(step - 1, 1))


def test_a_named_model_is_any_version_that_its_digest_proves(tmp_path: Path) -> None:
    path = record(tmp_path / "run", {1: [0], 2: [1], 3: [2]}, [])
    version_model(2).save_pretrained(tmp_path / "two")
    folder = replay_run(path, model=tmp_path / "two", certificate=False, progress=False)
    assert same(replayed(path, 3), exact(2, 1))
    with open_run(path) as run:
        assert run.replay(folder.name).complete_steps == [3] and run.replay(folder.name).manifest.weight_version == 2
    version_model(7).save_pretrained(tmp_path / "seven")
    with pytest.raises(BadInput, match=r"are not the run's version 0 .* nor one that a step recorded"):
        replay_run(path, model=tmp_path / "seven", name="other", progress=False)


def test_damaged_weights_write_nothing(tmp_path: Path) -> None:
    path = record(tmp_path / "run", {1: [0], 2: [1]}, [0, 1])
    file = path / "weights/version=000000/full.safetensors"
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    with pytest.raises(BadInput, match=r"version 0 of .* cannot be restored: its digest is"):
        replay_run(path, progress=False)
    assert not (path / "replays").exists()


def test_a_job_resumed_with_other_weights_under_the_same_number(tmp_path: Path) -> None:
    """Version 1 of the second life is not version 1 of the first; `resume` of the step says which is meant."""
    path = record(tmp_path / "run", {1: [0], 2: [1]}, [0, 1])
    store = WeightStore(Storage(path))
    store.write_full(1, raw(version_model(9)), resume=1)
    with RunWriter(path, strict=True) as writer:
        for table, columns in (
            ("sequences", {"sequence": [0], "prompt_ids": TEXTS.prompts[:1], "weight_version": [1]}),
            ("steps", {"loss": [0.0], "weight_version": [1], "resume": [1]}),
        ):
            writer.put(table, 3, columns)
        start = len(TEXTS.prompts[0])
        ids = {"sequence": [0] * 4, "position": np.arange(start, start + 4), "token_id": TEXTS.completions[0]}
        writer.put("tokens", 3, ids)
        writer.complete(3)
    replay_run(path, certificate=False, progress=False)
    assert same(replayed(path, 2), exact(1, 1)) and same(replayed(path, 3), exact(9, 1))
    with open_run(path) as run:
        said = run.replay("exact").manifest.model_dump()
    assert [(w["version"], w["resume"]) for w in said["weights"]] == [(0, 0), (1, 0), (1, 1)]


def test_weights_that_are_not_the_model_s(tmp_path: Path) -> None:
    model = version_model(0)
    tensors = raw(model)
    config = recorded_config(Manifest.model_validate(_model_fields(model)).model)
    assert recorded_config(Manifest().model) is None
    assert model_digest(model_with(config, tensors)) == model_digest(model)
    name = "model.norm.weight"
    less = {n: t for n, t in tensors.items() if n != name}
    with pytest.raises(BadInput, match="is not among the recorded weights"):
        model_with(config, less)
    with pytest.raises(BadInput, match="is not a tensor of the model"):
        set_weights(model, {**tensors, "extra": tensors[name]})
    with pytest.raises(BadInput, match=r"has shape \[36\], the model's has \[72\]"):
        set_weights(model, {**tensors, name: RawTensor("float32", (36,), bytes(144))})
    with pytest.raises(BadInput, match="mix bfloat16, float32"):
        model_with(config, {**tensors, name: RawTensor("bfloat16", (72,), bytes(144))})
    with pytest.raises(BadInput, match="manifest's model config cannot be used"):
        recorded_config(Manifest.model_validate({"model": {"architecture": "X", "config": {"model_type": "no"}}}).model)


def _model_fields(model: Any) -> dict[str, Any]:
    return {"model": {"architecture": type(model).__name__, "config": model.config.to_dict()}}
