"""Which implementation serves where, what it stamps, and that proofs and replays of two implementations never mix."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from recorded_runs import record

from timscope.data import BadInput, open_run
from timscope.replay import engines, rollout_func, vllm_engine
from timscope.replay.checks import compare
from timscope.replay.engines import FAST_VERSION, TileEngine, choose, fast_refusal, version_of
from timscope.replay.exact import ENGINE_VERSION
from timscope.replay.paths import Texts
from timscope.replay.replay_run import replay_run
from timscope.replay.tiny import tiny_model


@pytest.fixture
def run(tmp_path: Path, saved: Path, texts: Texts) -> Path:
    return record(tmp_path / "run", saved, texts)


def test_tiles_serve_a_cpu_and_whatever_the_fast_engine_cannot(monkeypatch) -> None:
    config = tiny_model("qwen3", head_dim=64).config
    assert choose(config, torch.float32, "cpu") is TileEngine and version_of(TileEngine) == ENGINE_VERSION
    assert choose(config, torch.bfloat16, "cuda", "tiles") is TileEngine
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(BadInput, match="CUDA"):
        choose(config, torch.float32, "cpu", "fast")
    with pytest.raises(BadInput, match="no implementation 'quick'"):
        choose(config, torch.float32, "cpu", "quick")
    monkeypatch.setattr(engines, "has_triton", lambda: False)
    assert choose(config, torch.bfloat16, "cuda") is TileEngine
    assert "triton" in str(fast_refusal(config, torch.bfloat16, "cuda"))
    monkeypatch.setattr(engines, "has_triton", lambda: True)
    assert fast_refusal(config, torch.bfloat16, "cuda") is None is fast_refusal(config, torch.float32, "cuda:1")
    for change, dtype, message in (
        ({}, torch.float16, "float16"),
        ({"hidden_act": "gelu"}, torch.bfloat16, "gelu"),
        ({"mlp_bias": True}, torch.bfloat16, "biases"),
        ({"head_dim": 12}, torch.bfloat16, "head sizes"),
    ):
        other = tiny_model("qwen3", head_dim=64).config
        for key, value in change.items():
            setattr(other, key, value)
        assert message in str(fast_refusal(other, dtype, "cuda"))


def test_a_certificate_of_another_engine_is_none(run: Path) -> None:
    folder = replay_run(run, steps=[0], progress=False)
    place = folder / "certificate.json"
    proof = json.loads(place.read_text())
    assert proof["environment"]["engine"] == ENGINE_VERSION
    with open_run(run) as opened:
        assert opened.replay("exact").certified
    for change in ({"engine": FAST_VERSION}, {"torch": "1.0"}, {"gpu": "other"}, None):
        there = None if change is None else proof["environment"] | change
        place.write_text(json.dumps(proof | {"environment": there}))
        with open_run(run) as opened:
            assert not opened.replay("exact").certified, change


def test_a_replay_is_not_resumed_by_another_engine(run: Path, monkeypatch) -> None:
    replay_run(run, steps=[0], certificate=False, progress=False)
    monkeypatch.setattr(TileEngine, "version", "exact-tiles-0")
    with pytest.raises(BadInput, match=r"exists with engine 'exact \(exact-tiles-1\)'"):
        replay_run(run, certificate=False, progress=False)
    replay_run(run, certificate=False, progress=False, name="another")


def test_a_comparison_of_nothing_or_of_nan_is_not_equal() -> None:
    assert compare("a", torch.ones(2), torch.ones(2))["equal"]
    assert not compare("a", torch.ones(0), torch.ones(0))["equal"]
    assert not compare("a", torch.full((2,), float("nan")), torch.full((2,), float("nan")))["equal"]


def test_the_package_imports_neither_torch_nor_triton() -> None:
    code = "import sys, timscope.replay as r; assert 'Generator' in r.__all__; print(sorted(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "'torch'" not in said and "'triton'" not in said
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        import timscope.replay

        _ = timscope.replay.nothing


def test_vllm_says_in_one_line_what_is_missing(
    run: Path, tmp_path: Path, saved: Path, texts: Texts, monkeypatch
) -> None:
    monkeypatch.setattr(vllm_engine, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match="vllm is not installed: pip install") as caught:
        replay_run(run, engine="vllm", progress=False)
    assert "\n" not in str(caught.value) and not (run / "replays").exists()
    monkeypatch.setattr(vllm_engine, "find_spec", lambda name: object())
    with pytest.raises(BadInput, match="temperature 1"):
        replay_run(run, engine="vllm", progress=False)


class _FakeVllm:
    """Log-probs of -0.25, -0.5, ... by position, as vLLM would put them."""

    def generate(self, rows, asked, use_tqdm):
        return [
            SimpleNamespace(
                prompt_logprobs=[
                    None if i == 0 else {t: SimpleNamespace(logprob=-0.25 * i), t + 1: SimpleNamespace(logprob=0.0)}
                    for i, t in enumerate(row["prompt_token_ids"])
                ]
            )
            for row in rows
        ]


def test_vllm_scores_are_read_at_the_tokens_they_score(monkeypatch) -> None:
    fake = SimpleNamespace(SamplingParams=lambda **options: options)
    monkeypatch.setitem(sys.modules, "vllm", fake)
    scores = vllm_engine.VllmEngine(_FakeVllm()).score([[5, 6], [7]], [[8, 9], []])
    assert scores[0].logprob.tolist() == [-0.5, -0.75] and len(scores[1].logprob) == 0


@pytest.mark.vllm
def test_a_real_vllm_is_near_the_exact_engine(tmp_path: Path, texts: Texts) -> None:
    model = tiny_model("qwen2", torch.bfloat16, width=128, head_dim=64)
    model.save_pretrained(tmp_path / "model")
    mode = {"old_logprob": {"mode": "raw", "temperature": 1.0}}
    fields = {"trainer": {"dtype": "bfloat16"}, "model": {"vocab_size": 391}, "logprobs": mode, "weights": []}
    path = record(tmp_path / "run", tmp_path / "model", texts, **fields)
    for engine in ("exact", "vllm"):
        replay_run(path, engine=engine, model=tmp_path / "model", steps=[0], certificate=False, progress=False)
    with open_run(path) as opened:
        tokens = opened.tokens([0])
    assert float((tokens["rescore_logprob"] - tokens["exact_logprob"]).abs().mean()) < 0.2


def test_the_rollout_function_s_contract(monkeypatch) -> None:
    made: list[int] = []

    class Fake:
        tokens = 1024

        def generate(self, prompts, asked):
            assert asked[0].temperature == 0.7 and asked[0].top_k == 0 and asked[0].stop == (2, 9)
            assert len({s.seed for s in asked}) == len(asked)
            return [SimpleNamespace(token_ids=[3, 2], logprobs=[-0.5, -1.0]) for _ in prompts]

    def make(model, slots, tokens):
        made.append(tokens)
        return Fake()

    monkeypatch.setattr(rollout_func, "exact_generator", make)
    model = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=[9]))
    tokenizer = SimpleNamespace(eos_token_id=2, apply_chat_template=lambda p, **_: [len(p), 1])
    trainer = SimpleNamespace(
        min_p=None, repetition_penalty=1.0, temperature=0.7, top_p=1.0, top_k=-1, max_completion_length=8,
        processing_class=tokenizer, model=model, state=SimpleNamespace(global_step=4),
        accelerator=SimpleNamespace(unwrap_model=lambda m: m),
    )  # fmt: skip
    rollout = rollout_func.exact_rollout()
    prompts = [[{"role": "user", "content": "a"}]] * 2
    said = rollout(prompts, trainer)
    assert said["prompt_ids"] == [[1, 1]] * 2 and said["completion_ids"] == [[3, 2]] * 2
    assert said["logprobs"] == [[-0.5, -1.0]] * 2 and said["weight_version"] == [4, 4]
    rollout(prompts, trainer)
    trainer.state.global_step = 5
    rollout(prompts, trainer)
    assert made == [1024, 1024], "new weights once a step"
    trainer.min_p = 0.1
    with pytest.raises(BadInput, match="min_p"):
        rollout(prompts, trainer)


def test_the_generator_says_why_it_cannot_serve(monkeypatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(BadInput, match="needs a CUDA device"):
        rollout_func.exact_generator(tiny_model("llama"))
