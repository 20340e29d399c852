"""The engine on whole models: equal bits on every path, plain transformers unequal, and nothing left behind."""

from __future__ import annotations

import pytest
import torch

from timscope.data import BadInput
from timscope.replay import certify, certify_tiles, paths, scoring
from timscope.replay.checks import certificate
from timscope.replay.exact import PARTS, ExactEngine
from timscope.replay.paths import random_texts
from timscope.replay.scoring import score
from timscope.replay.tiny import FAMILIES, tiny_model

CASES = [
    pytest.param(family, dtype, width, tied, id=f"{family}-{str(dtype)[6:]}-{width}-{'tied' if tied else 'untied'}")
    for family in FAMILIES
    for dtype in (torch.float32, torch.bfloat16)
    for width, tied in ((424, True), (391, False))
]


@pytest.mark.parametrize(("family", "dtype", "width", "tied"), CASES)
def test_every_path_gives_the_same_bits(family, dtype, width, tied, texts) -> None:
    model = tiny_model(family, dtype, width, tied=tied)
    checks = certify_tiles.run_checks(model, "tiny", texts, list(certify_tiles.quick_cases("cpu")))
    assert {c["name"]: c["max_abs_diff"] for c in checks if not c["equal"]} == {}
    assert len(checks) == 5
    controls = certify_tiles.run_controls(model, "tiny", texts)
    assert any(c["failed_as_it_must"] for c in controls), controls


def test_every_case_of_the_full_certificate() -> None:
    model = tiny_model("qwen3")
    texts = random_texts(391, certify_tiles.FULL_PROMPTS, 8)
    cases = list(certify_tiles.full_cases("cpu"))
    checks = certify_tiles.run_checks(model, "tiny", texts, cases)
    assert [c["name"] for c in checks if not c["equal"]] == []
    assert len({c["name"] for c in checks}) == len(cases) >= 20


@pytest.mark.parametrize("missing", ["linear", "attention", "activation"])
def test_an_engine_short_of_a_part_is_not_certified(missing, texts) -> None:
    model = tiny_model("llama", width=391)
    with torch.inference_mode(), ExactEngine(model, set(PARTS) - {missing}), paths.threads(1):
        alone = paths.batched(model, texts, 1)
        decoded = paths.cached(model, texts.take([0]), 0, decode=True)
        batch = paths.batched(model, texts, 7, "left")
    assert not (torch.equal(decoded, alone[:1]) and torch.equal(batch, alone))


def test_the_self_test_notices_a_missing_part() -> None:
    model = tiny_model("llama", width=391)
    assert certify.certify_quick(model)["exact"] is True
    broken = certify.certify_quick(model, set(PARTS) - {"linear"})
    assert broken["exact"] is False
    assert any(not check["equal"] for check in broken["checks"])


def test_blind_controls_withdraw_the_claim_of_their_dtype() -> None:
    check = {"name": "a", "equal": True, "tokens": 1, "max_abs_diff": 0.0}
    control = {"name": "b", "failed_as_it_must": True}
    assert certificate([check], [control], {})["exact"] is True
    blind = {"name": "b, too", "failed_as_it_must": False}
    assert certificate([check], [blind], {})["exact"] is False
    assert certificate([check], [control, blind], {})["exact"] is True
    assert certificate([check], [control, {"name": "c", "failed_as_it_must": False}], {})["exact"] is False
    assert certificate([check | {"equal": False}], [control], {})["exact"] is False
    assert certificate([check], [], {})["exact"] is False
    assert certificate([], [control], {})["exact"] is False


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_match_a_float64_forward(family, temperature, texts) -> None:
    model = tiny_model(family)
    with ExactEngine(model):
        found = score(model, texts.prompts, texts.completions, temperature)
    high = tiny_model(family).double()
    for prompt, completion, scores in zip(texts.prompts, texts.completions, found, strict=True):
        with torch.no_grad():
            logits = high(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        wanted = torch.log_softmax(logits / temperature, -1)
        taken = wanted.gather(-1, torch.tensor(completion)[:, None])[:, 0]
        assert torch.allclose(torch.from_numpy(scores.logprob).double(), taken, atol=1e-5)
        assert torch.allclose(torch.from_numpy(scores.entropy).double(), -(wanted.exp() * wanted).sum(-1), atol=1e-5)


def test_workers_and_packing_change_no_bit(texts) -> None:
    model = tiny_model("qwen2")
    many = texts.take([0, 1, 2, 3, 4, 5, 6] * 6)
    with ExactEngine(model):
        one = paths.packed(model, many, workers=1)
        assert torch.equal(one, paths.packed(model, many, workers=3))
        assert torch.equal(one[:7], one[7:14])
    with ExactEngine(model, allow_wide=False):
        assert torch.equal(one, paths.packed(model, many, workers=1))


def test_empty_completions_and_progress(texts) -> None:
    model, seen = tiny_model("llama"), []
    with ExactEngine(model):
        found = score(model, [[1, 2], [3]], [[], [4, 5]], progress=seen.append)
        assert [len(s.logprob) for s in found] == [0, 2] and sum(seen) == 2
        assert score(model, [], []) == []
        with pytest.raises(ValueError, match="without a prompt"):
            score(model, [[]], [[4]])


def test_gradients_match_plain_transformers(texts) -> None:
    model = tiny_model("qwen3")
    ids = torch.tensor([texts.prompts[0] + texts.completions[0]])
    grads = []
    for engine in (True, False):
        model.zero_grad()
        if engine:
            with ExactEngine(model):
                model(ids, labels=ids).loss.backward()
        else:
            model(ids, labels=ids).loss.backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    for a, b in zip(*grads, strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-5)


def test_a_packed_row_of_a_padding_free_trainer(texts) -> None:
    model = tiny_model("llama")
    two = texts.take([0, 3])
    rows = [p + c for p, c in zip(two.prompts, two.completions, strict=True)]
    with torch.inference_mode(), ExactEngine(model):
        together = model(
            torch.tensor([rows[0] + rows[1]]),
            position_ids=torch.cat([torch.arange(len(r)) for r in rows])[None],
            use_cache=False,
        ).logits[0]
        alone = [model(torch.tensor([r]), use_cache=False).logits[0] for r in rows]
    assert torch.equal(together, torch.cat(alone))


def test_the_model_is_restored_even_after_an_error(texts) -> None:
    model = tiny_model("llama")
    before = model(torch.tensor([[1, 2, 3]])).logits
    attention = model.config._attn_implementation
    with pytest.raises(RuntimeError, match="stop"), ExactEngine(model):
        assert model.config._attn_implementation != attention
        raise RuntimeError("stop")
    assert model.config._attn_implementation == attention
    assert not any("forward" in vars(module) for module in model.modules())
    assert torch.equal(before, model(torch.tensor([[1, 2, 3]])).logits)


def test_unknown_models_are_refused() -> None:
    model = tiny_model("qwen2")
    model.model.layers[0].mlp.up_proj = torch.nn.Bilinear(3, 3, 3)
    with pytest.raises(BadInput, match="Bilinear"):
        ExactEngine(model)
    for change, message in (
        ({"use_sliding_window": True}, "sliding"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"hidden_act": "tanh"}, "tanh"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "rotary"),
    ):
        model = tiny_model("qwen2")
        for key, value in change.items():
            setattr(model.config, key, value)
        with pytest.raises(BadInput, match=message):
            ExactEngine(model)
    with pytest.raises(ValueError, match="unknown parts"):
        ExactEngine(tiny_model("llama"), {"linar"})


@pytest.mark.slow
def test_smollm2_is_exact_and_close_to_transformers() -> None:
    from timscope.replay.models import load_model

    pytest.importorskip("gguf")
    try:
        model = load_model("smollm2", "float32")
    except BadInput as missing:
        pytest.skip(str(missing))
    assert certify.certify_quick(model)["exact"] is True
    texts = random_texts(model.config.vocab_size, [20, 40], 16)
    with torch.inference_mode():
        plain = paths.batched(model, texts, 1)
        with ExactEngine(model):
            exact = paths.packed(model, texts)
    assert (plain - exact).abs().mean() < 2e-5


def test_default_scoring_has_one_intra_op_thread_even_for_one_pack(texts, monkeypatch) -> None:
    seen = []
    plain = scoring._score_pack

    def spy(*arguments):
        seen.append(torch.get_num_threads())
        return plain(*arguments)

    monkeypatch.setattr(scoring, "_score_pack", spy)
    model = tiny_model("llama")
    with paths.threads(2), torch.inference_mode(), ExactEngine(model):
        scoring.score(model, texts.prompts[:1], texts.completions[:1])
        assert torch.get_num_threads() == 2
        scoring.score(model, texts.prompts[:1], texts.completions[:1], workers=1)
    assert seen == [1, 2]
