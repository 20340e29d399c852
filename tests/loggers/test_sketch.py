"""The sketch on the device against the numpy definition, and how it is rounded, added up and left out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from timscope.analysis.formulas import sketch as formulas
from timscope.analysis.formulas import sketch_cosine, sketch_vector
from timscope.data.manifest import Sketch
from timscope.loggers import gradients, packing
from timscope.loggers import sketch as device_side
from timscope.loggers.gradients import gradient_groups
from timscope.loggers.sketch import SketchPlan, rounded

SIZES = [1, 2, 63, 64, 65, 127, 4096, 8127, 8128, 8129, 3 * 4096, 4 * 8128 + 5]


def parameter(values: torch.Tensor) -> torch.nn.Parameter:
    """A parameter with that gradient."""
    made = torch.nn.Parameter(torch.zeros_like(values))
    made.grad = values
    return made


def raw(named: dict[str, torch.nn.Parameter], plan: SketchPlan) -> dict[str, np.ndarray]:
    """Sketches by group before they are rounded for storage."""
    (part,) = gradient_groups(named.items(), 1.0, plan)._parts
    return dict(zip(part.layout.groups, part.sketch.numpy(), strict=True))


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.sampled_from(SIZES), min_size=1, max_size=5),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    buckets=st.sampled_from([64, 128, 4096, 65_536]),
    seed=st.integers(0, 2**63),
    rows=st.sampled_from([1, 3, 1024]),
)
def test_equals_the_definition(sizes: list[int], dtype: torch.dtype, buckets: int, seed: int, rows: int) -> None:
    generator = torch.Generator().manual_seed(sum(sizes))
    # Two parameters a group; the last group may have one.
    named = {
        f"model.layers.{i // 2}.mlp.w{i % 2}": parameter(torch.randn(size, generator=generator).to(dtype))
        for i, size in enumerate(sizes)
    }
    expected: dict[str, np.ndarray] = {}
    for i, (name, p) in enumerate(named.items()):
        made = sketch_vector(p.grad.double().numpy(), name, buckets, seed)
        group = f"layers.{i // 2:03d}.mlp"
        expected[group] = expected.get(group, 0) + made
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradients, "_CPU_CHUNK_ROWS", rows)
        found = raw(named, SketchPlan(buckets, seed))
    assert set(found) == set(expected)
    for group, sketch in found.items():
        np.testing.assert_allclose(sketch, expected[group], rtol=1e-5, atol=1e-5 * (1 + np.linalg.norm(sketch)))


def two_groups() -> dict[str, torch.nn.Parameter]:
    torch.manual_seed(1)
    shapes = {
        "model.layers.0.mlp.up.weight": (70, 300),
        "model.layers.0.norm.weight": (300,),
        "lm_head.weight": (99, 99),
    }
    return {name: parameter(torch.randn(*shape)) for name, shape in shapes.items()}


def test_total_is_the_sum_and_the_loss_scale_is_divided_out() -> None:
    named = two_groups()
    plain = gradient_groups(named.items(), 1.0, SketchPlan()).result()
    for p in named.values():
        p.grad *= 1024.0
    scaled = gradient_groups(named.items(), 1024.0, SketchPlan()).result()
    parts = sum(row["sketch"] for group, row in plain.items() if group != "total")
    assert len(plain) == 4
    np.testing.assert_allclose(plain["total"]["sketch"], parts, atol=2**-7 * np.abs(parts).max())
    for group, row in plain.items():
        np.testing.assert_array_equal(row["sketch"], scaled[group]["sketch"])
        assert np.linalg.norm(row["sketch"]) == pytest.approx(row["norm"], rel=0.1)


def test_another_seed_or_name_is_unrelated_and_the_rest_of_the_model_does_not_matter() -> None:
    named = two_groups()
    own = raw(named, SketchPlan())["layers.000.mlp"]
    only = {name: p for name, p in named.items() if "mlp" in name}
    np.testing.assert_array_equal(raw(only, SketchPlan())["layers.000.mlp"], own)
    assert abs(sketch_cosine(own, raw(only, SketchPlan(seed=1))["layers.000.mlp"]).cosine) < 5 / 64
    other = {name.replace(".0.", ".1."): p for name, p in only.items()}
    assert abs(sketch_cosine(own, raw(other, SketchPlan())["layers.001.mlp"]).cosine) < 5 / 64


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_group_that_is_not_finite_has_no_sketch(bad: float) -> None:
    named = two_groups()
    named["lm_head.weight"].grad[3, 4] = bad
    found = gradient_groups(named.items(), 1.0, SketchPlan()).result()
    assert found["lm_head"]["sketch"] is None and found["total"]["sketch"] is None
    assert found["lm_head"]["nonfinite"] == found["total"]["nonfinite"] == 1
    assert np.isfinite(found["layers.000.mlp"]["sketch"]).all()


def test_no_sketch_unless_asked_for() -> None:
    assert all("sketch" not in row for row in gradient_groups(two_groups().items()).result().values())


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=50))
def test_rounding_is_that_of_bfloat16(values: list[float]) -> None:
    array = np.array(values, np.float32)
    np.testing.assert_array_equal(rounded(array), torch.tensor(array).bfloat16().float().numpy())


def test_rounding_keeps_what_is_not_a_number() -> None:
    odd = np.array([np.nan, np.inf, -np.inf], np.float32)
    odd_bits = np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    np.testing.assert_array_equal(rounded(odd), odd)
    assert np.isnan(rounded(odd_bits)).all()


def test_the_manifest_says_what_the_definition_is_called() -> None:
    said = Sketch(**SketchPlan(1024, 7).manifest())
    assert (said.buckets, said.seed, said.method) == (1024, 7, formulas.METHOD)
    assert (packing.LANES, packing.PERIOD, device_side.METHOD) == (formulas.LANES, formulas.PERIOD, formulas.METHOD)


@pytest.mark.parametrize("buckets", [0, -64, 32, 100, 4095, 131_072])
def test_buckets_are_a_power_of_two(buckets: int) -> None:
    with pytest.raises(ValueError, match="power of two from 64 to 65536"):
        SketchPlan(buckets)


def test_the_index_is_made_once_and_the_oldest_goes() -> None:
    named, plan = two_groups(), SketchPlan(64)
    gradient_groups(named.items(), 1.0, plan)
    kept = dict(plan._cache)
    gradient_groups(named.items(), 1.0, plan)
    assert len(kept) == 1 and all(plan._cache[key] is bags for key, bags in kept.items())
    for name in named:
        gradient_groups([(name, named[name])], 1.0, plan)
    assert len(plan._cache) == device_side._KEPT and not kept.keys() & plan._cache.keys()
