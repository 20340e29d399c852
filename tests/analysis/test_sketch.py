"""The count-sketch against its definition written out in plain Python integers, and its statistics over seeds."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timscope.analysis.formulas import sketch, sketch_cosine, sketch_norm, sketch_vector

WORD = 1 << 64


def word(key: str, index: int) -> int:
    """One 64-bit word, integer by integer."""
    x = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")
    x = (x + (index + 1) * 0x9E3779B97F4A7C15) % WORD
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % WORD
    return x ^ (x >> 31)


def place(name: str, offset: int, buckets: int, seed: int) -> tuple[int, int]:
    """Bucket and sign of one element."""
    block = word(f"{seed}:{name}", offset // 64)
    minus = (block >> 63) + (word(str(seed), offset % 8128) >> 63)
    return (block - offset % 64) % buckets, -1 if minus == 1 else 1


def ideal(values: list[np.ndarray], buckets: int, rng: np.random.Generator) -> list[np.ndarray]:
    """The textbook sketch of several vectors: bucket and sign drawn for every element."""
    bucket, sign = rng.integers(0, buckets, values[0].size), rng.integers(0, 2, values[0].size) * 2 - 1
    return [np.bincount(bucket, weights=v * sign, minlength=buckets) for v in values]


@settings(max_examples=25, deadline=None)
@given(
    size=st.sampled_from([1, 63, 64, 65, 300, 8128, 8200]),
    buckets=st.sampled_from([64, 4096, 65_536]),
    seed=st.integers(-3, 2**63),
    name=st.text(max_size=20),
)
def test_every_element_is_where_the_definition_puts_it(size: int, buckets: int, seed: int, name: str) -> None:
    values = np.random.default_rng(size).standard_normal(size)
    expected = [0.0] * buckets
    for offset, value in enumerate(values):
        bucket, sign = place(name, offset, buckets, seed)
        expected[bucket] += sign * value
    np.testing.assert_allclose(sketch_vector(values, name, buckets, seed), expected, atol=1e-12)


def test_sixty_four_neighbours_never_collide() -> None:
    for seed in range(20):
        made = sketch_vector(np.ones(64), "w", 64, seed)
        np.testing.assert_array_equal(np.abs(made), np.ones(64))


def test_linear_and_the_same_in_any_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 30, 1000))
    whole = sketch_vector(2 * a - b, "w")
    np.testing.assert_allclose(whole, 2 * sketch_vector(a, "w") - sketch_vector(b.reshape(-1), "w"), atol=1e-12)
    monkeypatch.setattr(sketch, "_CHUNK", 8128)
    np.testing.assert_allclose(sketch_vector(2 * a - b, "w"), whole, atol=1e-12)


def cases() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Pairs that a bad hash fails on: low rank, one heavy column, heavy tails, sparse."""
    rng = np.random.default_rng(5)
    row = rng.standard_normal(512)
    column = np.zeros(512)
    column[[7, 9, 70]] = 1, -1, 2
    dense = rng.standard_normal((2, 40_000))
    tail = rng.standard_t(2.5, (2, 40_000))
    return {
        "low rank": (np.outer(rng.standard_normal(80), row).ravel(), np.outer(rng.standard_normal(80), row).ravel()),
        "heavy columns": tuple(np.outer(rng.standard_normal(80), column).ravel() for _ in range(2)),  # type: ignore[dict-item]
        "related": (dense[0], dense[0] + dense[1]),
        "heavy tails": (tail[0], tail[0] + tail[1]),
        "sparse": (dense[0] * (dense[1] > 2.5), dense[0] * (dense[1] > 2.4)),
    }


@pytest.mark.parametrize("case", cases())
def test_unbiased_over_seeds_with_the_spread_of_the_ideal_sketch(case: str) -> None:
    a, b = cases()[case]
    size, true, buckets, seeds = np.linalg.norm(a) * np.linalg.norm(b), float(a @ b), 256, 200
    rng = np.random.default_rng(1)
    ours, best = np.empty((2, seeds))
    for seed in range(seeds):
        ours[seed] = sketch_vector(a, "w", buckets, seed) @ sketch_vector(b, "w", buckets, seed)
        x, y = ideal([a, b], buckets, rng)
        best[seed] = x @ y
    error = (ours - true) / size
    assert abs(error.mean()) < 5 * error.std() / math.sqrt(seeds)
    # Two spreads of 200 draws each: their ratio has a standard deviation of about 7 %.
    assert 0.6 < error.std() / ((best - true) / size).std() < 1.4


@pytest.mark.parametrize("true", [0.0, 0.5, 0.9, 0.999])
def test_cosine_is_within_the_standard_error_it_names(true: float) -> None:
    rng = np.random.default_rng(2)
    z = []
    for seed in range(60):
        a, noise = rng.standard_normal((2, 20_000))
        noise -= (noise @ a) / (a @ a) * a
        a, noise = a / np.linalg.norm(a), noise / np.linalg.norm(noise)
        b = true * a + math.sqrt(1 - true**2) * noise
        found = sketch_cosine(sketch_vector(a, "w", 1024, seed), sketch_vector(b, "w", 1024, seed))
        assert found.se == pytest.approx((1 - found.cosine**2) / 32)
        z.append((found.cosine - true) / found.se)
    assert 0.7 < np.std(z) < 1.3 and abs(np.mean(z)) < 5 / math.sqrt(60)


def test_norm_of_known_vectors() -> None:
    values = np.random.default_rng(3).standard_normal(50_000)
    ratios = [sketch_norm(sketch_vector(values, "w", 4096, s)) / np.linalg.norm(values) for s in range(20)]
    assert max(abs(r - 1) for r in ratios) < 5 / math.sqrt(2 * 4096)
    assert sketch_norm(sketch_vector([3.0], "w")) == 3.0
    assert sketch_norm(sketch_vector([], "w")) == 0.0


def test_another_seed_or_name_gives_an_unrelated_sketch() -> None:
    values = np.random.default_rng(4).standard_normal(100_000)
    own = sketch_vector(values, "layers.0.w")
    assert sketch_cosine(own, sketch_vector(3 * values, "layers.0.w")).cosine == pytest.approx(1.0)
    for other in (sketch_vector(values, "layers.1.w"), sketch_vector(values, "layers.0.w", seed=1)):
        assert abs(sketch_cosine(own, other).cosine) < 5 / 64
    shifted = sketch_vector(np.concatenate([[0.0], values]), "layers.0.w")
    assert abs(sketch_cosine(own, shifted).cosine) < 5 / 64


def test_what_cannot_be_compared() -> None:
    one = np.ones(64)
    for a, b in ((one, 0 * one), (one * np.inf, one), (one, np.where(np.arange(64) == 3, np.nan, one))):
        found = sketch_cosine(a, b)
        assert math.isnan(found.cosine) and math.isnan(found.se)
    with pytest.raises(ValueError, match="64 and 128"):
        sketch_cosine(one, np.ones(128))
    for buckets in (0, 32, 100, 131_072, -64):
        with pytest.raises(ValueError, match="power of two"):
            sketch_vector([1.0], "w", buckets)
