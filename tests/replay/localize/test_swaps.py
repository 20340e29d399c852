"""Swaps are real changes that leave no trace, and the ranking finds the ones that a target was made with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recorded_runs import record

from timscope.data import BadInput, open_run
from timscope.replay.localize import localize
from timscope.replay.localize.low_precision import fp8_per_tensor, fp8_unscaled, int8_per_channel
from timscope.replay.localize.ranking import Bench, rank
from timscope.replay.localize.swap_table import CONTROL, SWAPS, choose_swaps
from timscope.replay.localize.texts import Text
from timscope.replay.localize.witness import parse_witness
from timscope.replay.paths import Texts
from timscope.replay.replay_run import replay_run
from timscope.replay.tiny import tiny_model

# From a start in that dtype the exact engine makes the same choice, or there is nothing to round.
SAME = {
    "float32": {CONTROL, "attention-tiles", "gemm-tiles", "rope-fp32", "activation-fp32"},
    "bfloat16": {CONTROL, "attention-tiles", "gemm-tiles"},
}


@pytest.fixture
def run(tmp_path: Path, saved: Path, texts: Texts) -> Path:
    return record(tmp_path / "run", saved, texts, steps=2)


def bench(run: Path, model: Any, texts: Texts, start: str) -> Bench:
    pairs = zip(texts.prompts, texts.completions, strict=True)
    taken = [Text(i, list(p), list(c)) for i, (p, c) in enumerate(pairs)]
    with open_run(run) as opened:
        return Bench(opened, model, parse_witness(start, opened), taken, 1.0, lambda: None)


def state(model: Any) -> Any:
    """What a model is: its tensors by identity, every module's own attributes, and its settings."""
    tensors = {name: (t.data_ptr(), t.dtype) for name, t in model.state_dict(keep_vars=True).items()}
    own = {name: sorted(module.__dict__) for name, module in model.named_modules()}
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    return tensors, own, hooks, model.config._attn_implementation


@pytest.mark.parametrize("dtype", SAME)
def test_every_swap_is_a_real_change_and_leaves_no_trace(run: Path, texts: Texts, dtype: str) -> None:
    model = tiny_model("qwen2")
    before = state(model)
    made = bench(run, model, texts, f"exact-{dtype}")
    for swap in choose_swaps(None, dtype):
        moved = not np.array_equal(made.swap(swap), made.before)
        assert state(model) == before, swap.name
        if swap.name != "gemm-plain":  # the same bits or not, by the shapes
            assert moved == (swap.name not in SAME[dtype]), swap.name
    assert np.array_equal(made.score(made.start), made.before)


def test_a_swap_that_fails_is_taken_back_too(run: Path, texts: Texts) -> None:
    model = tiny_model("qwen2")
    before, made = state(model), bench(run, model, texts, "exact")
    broken = SWAPS["kv-fp8"].__class__("broken", "kv cache", "", lambda c, p: p.setting(c.model, "nosuch", 1))
    with pytest.raises(AttributeError):
        made.score(made.start, [SWAPS["weights-fp8"], broken])
    assert state(model) == before


def test_the_swap_that_made_the_target_removes_all_of_it(run: Path, texts: Texts) -> None:
    made = bench(run, tiny_model("qwen2"), texts, "exact")
    sequence = np.repeat(np.arange(len(texts.prompts)), texts.response)
    chosen = choose_swaps(["kv-fp8", "weights-int8", "logits-bf16", "rope-fp32"], "float32")
    target = made.score(made.start, [SWAPS["weights-int8"]])
    found = rank(made, chosen, target, sequence, 200, 0)
    assert found["best"] == found["ranking"][0]["name"] == "weights-int8"
    assert found["ranking"][0]["removed_variance"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    rows = {row["name"]: row for row in found["ranking"]}
    assert rows["rope-fp32"]["state"] == rows[CONTROL]["state"] == "nothing"
    for name in ("removed_variance", "removed_mean_abs", "explained"):
        assert set(rows[CONTROL][name].values()) == {0.0}
    assert found["control_passed"] and found["control"] == {"equal_share": 1.0, "removed": 0.0}


def test_two_swaps_that_made_the_target_together_are_found_together(run: Path, texts: Texts) -> None:
    made = bench(run, tiny_model("qwen2"), texts, "exact")
    sequence = np.repeat(np.arange(len(texts.prompts)), texts.response)
    target = made.score(made.start, [SWAPS["kv-bf16"], SWAPS["rope-bf16"]])
    chosen = choose_swaps(["attention-eager", "kv-bf16", "head-bf16", "rope-bf16"], "float32")
    found = rank(made, chosen, target, sequence, 200, 0)
    last = found["together"][-1]
    assert set(last["names"]) == {"kv-bf16", "rope-bf16"}
    assert last["removed_variance"]["value"] == 1.0 > found["ranking"][0]["removed_variance"]["value"]


def test_narrow_formats_round_as_they_should() -> None:
    x = torch.randn(31, 57, generator=torch.Generator().manual_seed(1))
    assert (int8_per_channel(x) - x).abs().max() <= 0.5001 * x.abs().amax(-1).max() / 127
    assert torch.equal(fp8_per_tensor(fp8_per_tensor(x)), fp8_per_tensor(x))
    relative = ((fp8_unscaled(x) - x) / x)[x.abs() > 2**-6]
    assert relative.abs().max() <= 2**-4
    assert fp8_unscaled(torch.tensor([1e4, -1e4])).tolist() == [448.0, -448.0]
    for rounding in (fp8_per_tensor, int8_per_channel):
        assert torch.equal(rounding(torch.zeros(2, 3)), torch.zeros(2, 3))


def test_the_left_side_is_the_replay_s_own_witness(run: Path) -> None:
    replay_run(run, progress=False)
    with open_run(run) as opened:
        wanted = opened.tokens([0])["exact_logprob"].to_numpy()
    found = localize(run, 0, swaps=["gemm-split-k"], resamples=50)
    assert np.array_equal(found.tokens["left"], wanted)
    assert found.said["parted"] and found.said["swaps"]["target"] == "rollout_logprob"
    assert found.said["right"]["attention"] == "sdpa" and found.said["trainer_check"] is None
    json.dumps(found.said)


def test_the_same_witness_twice_never_parts(run: Path) -> None:
    said = localize(run, 0, right="exact", target="right", swaps=["self"], sequences=2, resamples=20).said
    assert not said["parted"] and said["first"] is None and said["sequences_left_out"] == 5
    assert said["logprob"] == {"mean_abs": 0.0, "rms": 0.0, "max_abs": 0.0, "equal_share": 1.0}
    assert said["swaps"]["best"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"left": "vllm"}, "no witness 'vllm'"),
        ({"right": "hf-float16"}, "not float16"),
        ({"swaps": ["magic"]}, "no swap 'magic'"),
        ({"target": "reward"}, "no recorded log-prob column"),
        ({"target": "old_logprob"}, "has no old_logprob"),
        ({"sequences": 0}, "at least 1"),
        ({"step": 7}, "step 7 is not a complete step"),
    ],
)
def test_what_it_cannot_use_is_one_line(run: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        localize(run, options.pop("step", 0), **options)
