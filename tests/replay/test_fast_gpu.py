"""The fast engine behind replay and certify. On a GPU (-m gpu); the smallest of it in triton's interpreter too."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from recorded_runs import record

from timscope.data import BadInput, open_run
from timscope.replay.certify import certify, certify_quick
from timscope.replay.engines import FAST_VERSION, choose, has_triton, version_of
from timscope.replay.exact import ENGINE_VERSION
from timscope.replay.paths import Texts, random_texts
from timscope.replay.replay_run import replay_run
from timscope.replay.scoring import score
from timscope.replay.tiny import FAMILIES, tiny_model
from timscope.replay.weights import model_digest

DTYPES = (torch.bfloat16, torch.float32)
gpu = pytest.mark.gpu
interpreter = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1" or not has_triton(), reason="needs triton and TRITON_INTERPRET=1"
)


def model_of(family: str, dtype: torch.dtype, device: str = "cuda", **fields):
    return tiny_model(family, dtype, head_dim=64, **fields).to(device)


def differing(proof: dict) -> dict[str, float]:
    return {c["name"]: c["max_abs_diff"] for c in proof["checks"] if not c["equal"]}


@gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_self_test_passes_and_its_controls_fail(family: str, dtype: torch.dtype) -> None:
    model = model_of(family, dtype)
    maker = choose(model.config, model.dtype, "cuda")
    assert version_of(maker) == FAST_VERSION
    proof = certify_quick(model, maker=maker)
    assert differing(proof) == {}
    assert any(c["failed_as_it_must"] for c in proof["negative_controls"])
    assert proof["exact"] is True and proof["environment"]["engine"] == FAST_VERSION
    assert proof["environment"]["triton"] and proof["environment"]["gpu"]


@gpu
@pytest.mark.parametrize("family", FAMILIES)
def test_the_full_certificate(tmp_path: Path, family: str) -> None:
    model_of(family, torch.float32, "cpu", vocabulary=1009).save_pretrained(tmp_path / "model")
    proof = certify(tmp_path / "model", device="cuda")
    assert differing(proof) == {} and proof["exact"] is True
    assert proof["environment"]["engines"] == {"float32": FAST_VERSION, "bfloat16": FAST_VERSION}
    names = [c["name"] for c in proof["checks"]]
    assert len(set(names)) == len(names) > 60
    assert any("lengths 1 to 513, decoded" in n for n in names) and any(
        "drawn by the generator, 16" in n for n in names
    )


@gpu
@pytest.mark.slow
def test_long_sequences() -> None:
    from timscope.replay import certify_fast
    from timscope.replay.fast_engine import FastEngine

    model = model_of("llama", torch.bfloat16, layers=1)
    cases = [c for c in certify_fast.full_cases(391, long=True) if c[0].startswith("length ")]
    checks = certify_fast.run_checks(FastEngine(model), "tiny", random_texts(391, [40, 3], 4), cases)
    assert [c["name"] for c in checks if not c["equal"]] == [] and len(checks) == 2 * len(certify_fast.LONG)


@gpu
def test_scores_are_near_the_tiles_and_the_model_is_left_alone() -> None:
    model = model_of("qwen2", torch.float32)
    before = model_digest(model)
    texts = random_texts(391, [70, 3, 18], 12)
    with choose(model.config, model.dtype, "cuda", "fast")(model) as engine:
        fast = engine.score(texts.prompts, texts.completions, 0.7)
    with choose(model.config, model.dtype, "cuda", "tiles")(model):
        tiles = score(model, texts.prompts, texts.completions, 0.7)
    for a, b in zip(fast, tiles, strict=True):
        # Wide enough for products in TF32, narrow enough to show a wrong token or temperature.
        assert np.allclose(a.logprob, b.logprob, atol=2e-2) and np.allclose(a.entropy, b.entropy, atol=2e-2)
    assert model_digest(model) == before and not any("forward" in vars(m) for m in model.modules())


@gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_replay_end_to_end_that_resumes(tmp_path: Path, texts: Texts, dtype: str) -> None:
    model = tiny_model("qwen2", head_dim=64)
    model.save_pretrained(tmp_path / "model")
    weights = [{"version": 0, "digest": model_digest(model), "source": str(tmp_path / "model")}]
    run = record(tmp_path / "run", tmp_path / "model", texts, weights=weights, trainer={"dtype": dtype})
    folder = replay_run(run, steps=[0], device="cuda", progress=False)
    seen: list[int] = []
    assert replay_run(run, device="cuda", progress=seen.append) == folder
    assert sum(seen) == 7 * 12, "the first step is not scored again"
    with open_run(run) as opened:
        replay = opened.replay("exact")
        first, second = (opened.tokens([s])["exact_logprob"].to_numpy() for s in (0, 1))
    assert replay.certified and replay.complete_steps == [0, 1]
    assert replay.manifest.environment["engine"] == FAST_VERSION
    assert np.array_equal(first, second), "the same texts under the same weights"
    with pytest.raises(BadInput, match=ENGINE_VERSION):
        replay_run(run, device="cuda", implementation="tiles", progress=False)


@gpu
def test_the_generator_by_its_public_name() -> None:
    from timscope.replay import Sampling, exact_generator

    model = model_of("qwen3", torch.bfloat16)
    generator = exact_generator(model, slots=4, tokens=128)
    texts = random_texts(391, [5, 64, 17, 1, 33, 7], 1)
    drawn = generator.generate(texts.prompts, [Sampling(max_tokens=40, seed=i) for i in range(6)])
    with choose(model.config, model.dtype, "cuda")(model) as engine:
        scores = engine.score(texts.prompts, [c.token_ids for c in drawn])
    for c, s in zip(drawn, scores, strict=True):
        assert np.array_equal(np.array(c.logprobs, np.float32), s.logprob)


@interpreter
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.timeout(600)
def test_the_smallest_proof_in_the_interpreter(family: str, monkeypatch) -> None:
    """The logic of the paths alone: numpy's products depend on the row, so here they are rounded from float64."""
    from triton.runtime import interpreter as inside

    from timscope.replay import certify_fast
    from timscope.replay.fast.matmul import Plan
    from timscope.replay.fast_engine import FastEngine

    def product(self, a, b, d, *_):
        wide = a.data.astype(np.float64) @ b.data.astype(np.float64) + d.data
        return inside.TensorHandle(wide.astype(d.data.dtype), d.dtype.scalar)

    monkeypatch.setattr(inside.InterpreterBuilder, "create_dot", product)
    monkeypatch.setattr(Plan, "probe", lambda self, weight, bias=None: None)
    model = tiny_model(family, width=40, layers=1, vocabulary=97, head_dim=64)
    cases = [c for c in certify_fast.quick_cases() if not c[0].startswith("products")]
    cases += [c for c in certify_fast.full_cases(97) if c[0] in ("rows permuted", "prefill in chunks of 64")]
    checks = certify_fast.run_checks(FastEngine(model), "tiny", random_texts(97, [20, 4], 2), cases)
    assert {c["name"]: c["max_abs_diff"] for c in checks if not c["equal"]} == {} and len(checks) == 6
