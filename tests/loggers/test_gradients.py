"""Gradient statistics against numpy in float64, and what measuring must never do: write, draw, or depend on order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from timscope.loggers import gradients
from timscope.loggers.gradients import gradient_groups
from timscope.loggers.parameter_names import group_of, plain_name
from timscope.loggers.sketch import SketchPlan

NAMES = {
    "model.layers.0.self_attn.q_proj.weight": "layers.000.self_attn",
    "model.layers.0.self_attn.o_proj.weight": "layers.000.self_attn",
    "model.layers.0.input_layernorm.weight": "layers.000.norm",
    "model.layers.10.mlp.up_proj.weight": "layers.010.mlp",
    "model.embed_tokens.weight": "embed_tokens",
    "model.norm.weight": "norm",
}
SIZES = st.sampled_from([1, 2, 63, 64, 127, 4096, 8127, 8128, 8129, 3 * 8128, 40_000])
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


def parameter(values: torch.Tensor) -> torch.nn.Parameter:
    """A parameter with that gradient."""
    made = torch.nn.Parameter(torch.zeros_like(values))
    made.grad = values
    return made


def brute(named: dict[str, torch.nn.Parameter], scale: float) -> dict[str, dict[str, float]]:
    """Every statistic from the definition, in float64."""
    values: dict[str, list[np.ndarray]] = {}
    for name, p in named.items():
        if p.grad is not None:
            for group in (NAMES[name], "total"):
                values.setdefault(group, []).append(p.grad.double().numpy().ravel())
    result = {}
    for group, parts in values.items():
        x = np.concatenate(parts) / scale
        result[group] = {
            "norm": float(np.sqrt(np.sum(x * x))),
            "max_abs": float(np.abs(x).max()),
            "zero_share": float((x == 0).mean()),
            "nonfinite": int((~np.isfinite(x)).sum()),
        }
    return result


def same(found: dict[str, dict[str, Any]], expected: dict[str, dict[str, float]]) -> None:
    assert set(found) == set(expected) and list(found)[-1] == "total"
    for group, row in expected.items():
        for name, value in row.items():
            exact = name in ("nonfinite", "zero_share")
            assert found[group][name] == pytest.approx(value, rel=0 if exact else 2e-6, abs=0, nan_ok=True), (
                group,
                name,
            )


@settings(max_examples=40, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([1.0, 65536.0, 3.0]))
def test_statistics_are_those_of_the_definition(data: st.DataObject, seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    named = {}
    for name in data.draw(st.lists(st.sampled_from(sorted(NAMES)), min_size=1, unique=True)):
        size = data.draw(SIZES)
        values = torch.randn(size, generator=generator, dtype=torch.float64)
        values[torch.rand(size, generator=generator) < data.draw(st.sampled_from([0.0, 0.4, 1.0]))] = 0
        values = (values * 10 ** data.draw(st.sampled_from([-8, 0, 3]))).float()  # what float32 can hold
        for bad in data.draw(st.lists(st.sampled_from([math.inf, -math.inf, math.nan]), max_size=2)):
            values[torch.randint(size, (), generator=generator)] = bad
        named[name] = parameter(values.to(DTYPES[data.draw(st.sampled_from(sorted(DTYPES)))]))
    with np.errstate(invalid="ignore"):
        same(gradient_groups(named.items(), scale).result(), brute(named, scale))


def job(seed: int = 0) -> dict[str, torch.nn.Parameter]:
    """Parameters that fill several chunks, one without a gradient, one whose gradient is transposed."""
    torch.manual_seed(seed)
    named = {name: parameter(torch.randn(90, 101 + i)) for i, name in enumerate(NAMES)}
    named["model.norm.weight"].grad = None
    odd = named["model.embed_tokens.weight"]
    odd.data = odd.data.T.contiguous()
    odd.grad = torch.randn(90, odd.shape[0]).T
    assert not odd.grad.is_contiguous()
    return named


def exact(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {f"{g}.{k}": np.asarray(v).tolist() for g, row in found.items() for k, v in row.items()}


def test_order_and_container_do_not_matter() -> None:
    named = job()
    plan = SketchPlan(256)
    first = exact(gradient_groups(named.items(), 2.0, plan).result())
    assert exact(gradient_groups(reversed(named.items()), 2.0, plan).result()) == first
    assert exact(gradient_groups(((n, p) for n, p in named.items()), 2.0, SketchPlan(256)).result()) == first
    wrapped = [(f"_orig_mod.module.{n}", p) for n, p in named.items()]
    assert exact(gradient_groups(wrapped, 2.0, plan).result()) == first


@pytest.mark.parametrize("rows", [1, 2, 1000])
def test_chunks_do_not_matter(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    named = job()
    monkeypatch.setattr(gradients, "_CPU_CHUNK_ROWS", rows)
    same(gradient_groups(named.items()).result(), brute(named, 1.0))


def test_gradients_and_random_state_are_untouched() -> None:
    named = job()
    before = {n: p.grad.clone() for n, p in named.items() if p.grad is not None}
    state = torch.get_rng_state()
    measured = gradient_groups(named.items(), 1.0, SketchPlan())
    assert torch.equal(torch.get_rng_state(), state)
    for name, values in before.items():
        assert torch.equal(named[name].grad.view(torch.int32), values.view(torch.int32))
    first = exact(measured.result())
    for p in named.values():  # what the optimizer does next cannot change what was measured
        p.grad = None if p.grad is None else p.grad.zero_()
    assert exact(measured.result()) == first
    assert gradient_groups(named.items()).result()["total"]["zero_share"] == 1.0


def test_nothing_to_measure() -> None:
    assert gradient_groups([]).result() == {}
    empty = parameter(torch.zeros(0, 4))
    assert gradient_groups([("w", torch.nn.Parameter(torch.ones(3))), ("v", empty)], 1.0, SketchPlan()).result() == {}


def test_groups_by_name() -> None:
    for name, group in NAMES.items():
        assert group_of(name) == group
        assert group_of(f"module.{name}") == group_of(f"_orig_mod.{name}") == group
    assert group_of("transformer.h.3.attn.c_attn.bias") == "h.003.attn"
    assert plain_name("module.model.layers.0._checkpoint_wrapped_module.mlp.weight") == "model.layers.0.mlp.weight"


@pytest.mark.gpu
def test_cuda_says_the_same_without_synchronising() -> None:
    named, plan = job(), SketchPlan()
    expected = gradient_groups(named.items(), 2.0, plan).result()
    on_gpu = {n: torch.nn.Parameter(p.detach().cuda()) for n, p in named.items()}
    for name, p in named.items():
        on_gpu[name].grad = None if p.grad is None else p.grad.cuda()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        handles = [gradient_groups(on_gpu.items(), 2.0, plan) for _ in range(3)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    first = handles[0].result()
    assert all(exact(h.result()) == exact(first) for h in handles[1:])  # bit for bit, run after run
    same(first, brute(named, 2.0))
    for group, row in expected.items():
        np.testing.assert_allclose(first[group]["sketch"], row["sketch"], atol=0.01 * row["norm"])
