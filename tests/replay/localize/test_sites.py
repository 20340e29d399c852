"""A known change in one operation of one layer: exactly that module is named, and no other is blamed for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from timscope.replay.localize.batches import Padding
from timscope.replay.localize.comparison import compare
from timscope.replay.localize.computation import Computation
from timscope.replay.localize.parts import in_bfloat16
from timscope.replay.localize.patching import Patches
from timscope.replay.localize.routing import STEPS, Step
from timscope.replay.localize.sites import sites
from timscope.replay.localize.texts import Text
from timscope.replay.localize.witness import Witness
from timscope.replay.paths import Texts
from timscope.replay.tiny import FAMILIES, tiny_model

Change = Callable[[Any, Patches], None]

EXACT = Witness("exact", "exact", "float32")
PLAIN = Witness("hf", "hf", "float32", "sdpa")


class Changed(Computation):
    """A computation with one more change in it."""

    def __init__(self, model: Any, witness: Witness, change: Change) -> None:
        super().__init__(model, witness)
        self.change = change

    def __enter__(self) -> Changed:
        super().__enter__()
        self.change(self.model, self._patches)
        return self


def taken(texts: Texts, left: bool = True) -> list[Text]:
    longest = max(map(len, texts.prompts))
    pairs = enumerate(zip(texts.prompts, texts.completions, strict=True))
    return [
        Text(i, list(p), list(c), (longest - len(p)) * left, (longest - len(p)) * (not left)) for i, (p, c) in pairs
    ]


def eps(model: Any, p: Patches) -> None:
    p.setting(model.model.layers[1].post_attention_layernorm, "variance_epsilon", 1e-3)


def narrow_down(model: Any, p: Patches) -> None:
    module = model.model.layers[0].mlp.down_proj
    p.attribute(module, "forward", lambda x: in_bfloat16(x, module.weight, module.bias))


def narrow_head(model: Any, p: Patches) -> None:
    p.attribute(model.lm_head, "forward", lambda x: in_bfloat16(x, model.lm_head.weight, None))


def wrong_key(model: Any, p: Patches) -> None:
    step = Step(before=lambda _m, h: (h[0], h[1] * 1.001, h[2]))
    module = model.model.layers[1].self_attn
    p.attribute(module, STEPS, (*module.__dict__.get(STEPS, ()), step))


def wrong_attention(model: Any, p: Patches) -> None:
    step = Step(after=lambda _m, out: out.to(torch.bfloat16).to(out.dtype))
    p.attribute(model.model.layers[1].self_attn, STEPS, (step,))


def other_activation(model: Any, p: Patches) -> None:
    p.attribute(model.model.layers[1].mlp.act_fn, "forward", torch.nn.functional.gelu)


CHANGES = {
    "layers.1.post_attention_layernorm": eps,
    "layers.0.down_proj": narrow_down,
    "logits": narrow_head,
    "layers.1.k_rope": wrong_key,
    "layers.1.attention": wrong_attention,
    "layers.1.act_fn": other_activation,
}


@pytest.mark.parametrize("witness", [EXACT, PLAIN], ids=["exact", "hf"])
@pytest.mark.parametrize("name", CHANGES)
def test_the_changed_module_is_the_first_and_the_only_one_to_blame(name: str, witness: Witness, texts: Texts) -> None:
    model = tiny_model("llama")
    right = Changed(model, witness, CHANGES[name])
    found = compare(model, Computation(model, witness), right, taken(texts), 3)
    first = found.first()
    assert first is not None and first.name == name
    assert [row["site"] for row in found.rows() if row["own_equal_share"] < 1] == [name]
    before = [row for row in found.rows() if row["order"] < next(r["order"] for r in found.rows() if r["site"] == name)]
    assert all(row["max_abs"] == 0.0 and row["equal_share"] == 1.0 for row in before)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_rows_align_whatever_the_padding(family: str, left: bool, texts: Texts) -> None:
    """The exact engine gives a token the same bits in every batch, so only misaligned rows could differ."""
    model = tiny_model(family)
    padded = Witness("padded", "exact", "float32", padding=Padding(3, shifted=False))
    found = compare(model, Computation(model, EXACT), Computation(model, padded), taken(texts, left), 3)
    assert found.first() is None
    assert all(row["elements"] and row["own_equal_share"] == 1.0 for row in found.rows())


def test_positions_that_count_the_padding_are_named(texts: Texts) -> None:
    model = tiny_model("llama")
    shifted = Witness("shifted", "exact", "float32", padding=Padding(3, shifted=True))
    first = compare(model, Computation(model, EXACT), Computation(model, shifted), taken(texts), 3).first()
    assert first is not None and first.name == "rotary_emb"


def test_plain_transformers_is_watched_without_a_changed_bit(texts: Texts) -> None:
    model = tiny_model("qwen3")
    ids = torch.tensor([texts.prompts[0] + texts.completions[0]])
    for kernel in ("eager", "sdpa"):
        model.config._attn_implementation = kernel
        with torch.inference_mode():
            plain = model(ids, use_cache=False).logits.float().log_softmax(-1)
        with Computation(model, Witness("hf", "hf", "float32", kernel)) as computation:
            ours = computation.score(taken(texts)[:1])
        count = len(texts.completions[0])
        wanted = plain[0, -count - 1 : -1].gather(-1, ids[0, -count:, None])[:, 0]
        assert torch.allclose(ours, wanted, atol=3e-6, rtol=0)
        assert model.config._attn_implementation == kernel


def test_every_site_is_a_module_of_the_model() -> None:
    model = tiny_model("qwen3")
    known = dict(model.named_modules())
    found = sites(model)
    assert len({site.name for site in found}) == len(found) == 2 + 2 * 19 + 3
    assert all(site.module in known for site in found if site.kind != "logprob")
