"""The fast engine's training forward: bits of scoring and of rollout, gradients of plain transformers, and equal twice.

On a GPU with -m gpu. Without one, TRITON_INTERPRET=1 and -m gpu run the same on the CPU, slowly.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from timscope.data import BadInput
from timscope.replay.paths import Texts, random_texts
from timscope.replay.tiny import FAMILIES, tiny_model

pytest.importorskip("triton")
pytestmark = pytest.mark.gpu

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LENGTHS, RESPONSE = ([300, 5, 130, 63, 1, 17], 9) if DEVICE == "cuda" else ([70, 3, 1], 5)
DTYPES = (torch.bfloat16, torch.float32)


@pytest.fixture(autouse=True)
def small_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU every product goes to the sequential kernel: probing thousands of rows would take minutes."""
    if DEVICE == "cpu":
        from timscope.replay.fast import matmul

        monkeypatch.setattr(matmul, "LARGEST", 2)
        monkeypatch.setattr(matmul, "COUNTS", ())


@pytest.fixture
def texts() -> Texts:
    return random_texts(391, LENGTHS, RESPONSE)


def model_of(family: str, dtype: torch.dtype, **fields: Any) -> Any:
    sizes = {"width": 424} if DEVICE == "cuda" else {"width": 88, "layers": 1}
    return tiny_model(family, dtype, head_dim=64, **(sizes | fields)).to(DEVICE)


def scored(model: Any, texts: Texts, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of scoring, on the CPU."""
    from timscope.replay.fast_engine import FastEngine

    with FastEngine(model) as engine:
        found = engine.score(texts.prompts, texts.completions, temperature)
    return tuple(torch.cat([torch.from_numpy(getattr(s, name)) for s in found]) for name in ("logprob", "entropy"))


def plain(model: Any, texts: Texts, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """The same of plain transformers, one sequence a forward, with gradients."""
    found = []
    for prompt, completion in zip(texts.prompts, texts.completions, strict=True):
        ids = torch.tensor([prompt + completion], device=model.device)
        logits = model(ids[:, :-1], use_cache=False).logits[0, len(prompt) - 1 :]
        logp = torch.log_softmax((logits if logits.dtype == torch.float64 else logits.float()) / temperature, -1)
        own = logp.gather(1, ids[0, len(prompt) :, None])[:, 0]
        found.append((own, -(logp.exp() * logp).sum(-1)))
    return torch.cat([f[0] for f in found]), torch.cat([f[1] for f in found])


def loss_of(logprob: Tensor, entropy: Tensor) -> Tensor:
    """A policy gradient with an entropy bonus, so that both outputs carry gradients of both signs."""
    advantage = torch.linspace(-1, 2, len(logprob), device=logprob.device, dtype=logprob.dtype)
    return -(advantage * logprob).mean() - 0.3 * entropy.mean()


def gradients(model: Any, outputs: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    loss_of(*outputs).backward()
    assert all(p.grad is not None for p in model.parameters())
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def distance(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm().clamp(min=1e-12))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_bits_of_scoring_and_two_equal_backward_passes(texts: Texts, family: str, dtype: torch.dtype) -> None:
    from timscope.replay.fast.training import FastTraining

    model = model_of(family, dtype)
    wanted = scored(model, texts, 0.7)
    train = FastTraining(model, positions=512)
    got = train(texts.prompts, texts.completions, 0.7)
    assert all(x.requires_grad and torch.equal(x.detach().cpu(), y) for x, y in zip(got, wanted, strict=True))
    first = gradients(model, got)
    train.checkpoint = True
    again = train(texts.prompts, texts.completions, 0.7)
    assert torch.equal(again[0], got[0])
    second = gradients(model, again)
    assert [n for n in first if not torch.equal(first[n], second[n])] == []
    # Negative control: the model as transformers computes it gives other bits.
    assert not torch.equal(plain(model, texts, 0.7)[0].detach().cpu(), wanted[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_of_transformers(texts: Texts, family: str) -> None:
    """Against float64, beside the distance that transformers itself has in the same dtype."""
    from timscope.replay.fast.training import FastTraining

    for dtype, bound in ((torch.float32, 2e-2 if DEVICE == "cuda" else 1e-4), (torch.bfloat16, 0.25)):
        model = model_of(family, dtype, tied=family == "qwen2")
        exact = copy.deepcopy(model).double()
        wanted = gradients(exact, plain(exact, texts, 0.9))
        got = gradients(model, FastTraining(model, positions=512)(texts.prompts, texts.completions, 0.9))
        theirs = gradients(model, plain(model, texts, 0.9))
        for name, value in wanted.items():
            # On a GPU the engine's float32 attention uses TF32, hence the bound there.
            # A key's bias shifts every score of a query alike, so its gradient is zero but for rounding.
            if name.endswith("k_proj.bias"):
                continue
            own, other = distance(got[name], value), distance(theirs[name], value)
            assert own < max(bound, 2 * other), f"{name} in {dtype}: {own:.2e}, transformers {other:.2e}"


def test_a_sequence_alone_has_the_bits_it_has_in_a_batch(texts: Texts) -> None:
    from timscope.replay.fast.training import FastTraining

    train = FastTraining(model_of("qwen3", torch.bfloat16), positions=512)
    together = train(texts.prompts, texts.completions)[0].split(RESPONSE)
    for i in reversed(range(len(LENGTHS))):
        alone = texts.take([i])
        assert torch.equal(train(alone.prompts, alone.completions)[0], together[i])


def test_rollout_log_probs_are_the_trainers(texts: Texts) -> None:
    from timscope.replay.fast.generate import Generator
    from timscope.replay.fast.sampling import Sampling
    from timscope.replay.fast.training import FastTraining
    from timscope.replay.fast_engine import FastEngine

    model = model_of("qwen3", torch.bfloat16)
    train = FastTraining(model, positions=512)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(2):  # the second time with weights that a step has moved
        with FastEngine(model) as engine:
            asked = [Sampling(0.8, max_tokens=RESPONSE, seed=10 * step + i) for i in range(len(LENGTHS))]
            drawn = Generator(engine.fast, slots=4, tokens=512).generate(texts.prompts, asked)
        logprob, entropy = train(texts.prompts, [c.token_ids for c in drawn], 0.8)
        assert logprob.tolist() == [x for c in drawn for x in c.logprobs]
        optimizer.zero_grad()
        loss_of(logprob, entropy).backward()
        optimizer.step()


def test_master_weights_in_float32_and_frozen_parameters(texts: Texts) -> None:
    from timscope.replay.fast.training import FastTraining

    master = model_of("qwen2", torch.bfloat16).float()
    copied = copy.deepcopy(master).bfloat16()
    copied.model.rotary_emb.inv_freq = master.model.rotary_emb.inv_freq  # no weight: stays in float32 when loaded
    frozen = master.model.layers[0].mlp.up_proj.weight.requires_grad_(False)
    got = FastTraining(master, positions=512, dtype=torch.bfloat16)(texts.prompts, texts.completions)
    assert torch.equal(got[0].detach().cpu(), scored(copied, texts)[0])
    loss_of(*got).backward()
    assert frozen.grad is None
    assert master.lm_head.weight.grad.dtype == torch.float32


def test_the_heads_slices_change_little(texts: Texts, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head in many slices of rows and vocabulary gives the gradient of the head at once."""
    from timscope.replay.fast import training_ends
    from timscope.replay.fast.training import FastTraining

    model = model_of("llama", torch.float32)
    train = FastTraining(model, positions=512)
    whole = gradients(model, train(texts.prompts, texts.completions))
    monkeypatch.setattr(training_ends, "SLICE", 128)
    monkeypatch.setattr(training_ends, "LOGIT_BYTES", 128 * 4 * 6)
    pieces = gradients(model, train(texts.prompts, texts.completions))
    assert max(distance(pieces[n], whole[n]) for n in whole) < 1e-5


def test_what_it_does_not_know_is_refused(texts: Texts) -> None:
    from timscope.replay.fast.training import FastTraining

    model = model_of("llama", torch.bfloat16)
    train = FastTraining(model, positions=16)
    with pytest.raises(BadInput, match="longer than the 16 positions"):
        train(texts.prompts, texts.completions)
    with pytest.raises(BadInput, match="a prompt of a token"):
        train([[]], [[1]])
    model.config.attention_dropout = 0.1
    with pytest.raises(BadInput, match="dropout"):
        FastTraining(model)
    with pytest.raises(BadInput, match="head sizes"):
        FastTraining(tiny_model("llama"))
