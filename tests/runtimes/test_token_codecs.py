"""Codecs round vectors within their steps; products of integers are those of the rounded vectors."""

from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from farrank_runtimes import token_codecs
from farrank_runtimes.token_codecs import (
    CodecName,
    Int4Codec,
    Int8Codec,
    Vectors,
    fit,
    has_integer_products,
    restored,
    row_type,
    row_values,
)

NAMES: tuple[CodecName, ...] = get_args(CodecName)


def units(rows: int, width: int, seed: int = 0) -> Vectors:
    """Vectors of length 1 whose dimensions have different spreads and means, as those of models do."""
    generator = np.random.default_rng(seed)
    spread = generator.uniform(0.1, 3.0, width)
    vectors = generator.standard_normal((rows, width)) * spread + generator.uniform(-1.0, 1.0, width)
    unit: Vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return unit


@pytest.mark.parametrize("name", NAMES)
@given(rows=st.integers(1, 60), half=st.integers(1, 64), seed=st.integers(0, 2**31))
def test_rows_come_back_after_a_store(name: CodecName, rows: int, half: int, seed: int) -> None:
    vectors = units(rows, 2 * half, seed)
    codec = fit(name, vectors)
    written = codec.encode(vectors)
    assert written.dtype == np.dtype(row_type(name))
    assert written.shape == (rows, row_values(name, 2 * half))
    again = restored(name, codec.parameters, 2 * half)
    assert again.name == name
    assert np.array_equal(again.decode(written), codec.decode(written))


def test_the_sizes_of_a_vector() -> None:
    sizes = {name: np.dtype(row_type(name)).itemsize * row_values(name, 128) for name in NAMES}
    assert sizes == {"int8": 128, "int4": 64, "fp16": 256}


@given(rows=st.integers(2, 60), width=st.integers(1, 130), seed=st.integers(0, 2**31))
def test_int8_is_within_half_a_step_of_its_sample(rows: int, width: int, seed: int) -> None:
    vectors = units(rows, width, seed)
    codec = Int8Codec.fit(vectors)
    error = np.abs(codec.decode(codec.encode(vectors)) - vectors)
    assert (error <= codec.parameters[1] * 0.501 + 1e-7).all()


def test_values_beyond_the_sample_become_the_nearest() -> None:
    sample = units(500, 8)
    for codec in (Int8Codec.fit(sample), Int4Codec.fit(sample)):
        far = codec.decode(codec.encode(np.full((1, 8), 40.0, np.float32)))
        near = codec.decode(codec.encode(np.full((1, 8), -40.0, np.float32)))
        largest, smallest = (
            codec.decode(codec.encode(sample)).max(0),
            codec.decode(codec.encode(sample)).min(0),
        )
        assert (far >= largest - 1e-6).all()
        assert (near <= smallest + 1e-6).all()


def test_int4s_range_has_less_error_than_the_whole_range() -> None:
    sample = units(20_000, 16)
    codec = Int4Codec.fit(sample)
    found = np.square(codec.decode(codec.encode(sample)) - sample).mean()
    lowest, steps = sample.min(0), (sample.max(0) - sample.min(0)) / 15
    whole = np.square(np.rint((sample - lowest) / steps) * steps + lowest - sample).mean()
    assert found < 0.8 * whole


def test_a_dimension_without_spread_is_kept() -> None:
    vectors = units(100, 6)
    vectors[:, 2] = 0.25
    for name in NAMES:
        codec = fit(name, vectors)
        assert codec.decode(codec.encode(vectors))[:, 2] == pytest.approx(0.25, abs=1e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_vectors_that_are_not_finite_are_refused(name: CodecName, value: float) -> None:
    vectors = units(10, 4)
    codec = fit(name, vectors)
    vectors[3, 1] = value
    with pytest.raises(ValueError, match="not finite, or too large for the codec"):
        codec.encode(vectors)


def test_fp16_refuses_what_it_cannot_hold() -> None:
    vectors = units(10, 4)
    with pytest.raises(ValueError, match="too large"):
        fit("fp16", vectors).encode(vectors * 1e6)


def test_int4_needs_an_even_number_of_dimensions() -> None:
    with pytest.raises(ValueError, match="the vectors have 5 dimensions; int4 needs an even number"):
        fit("int4", units(10, 5))


@pytest.mark.parametrize("integers", [True, False])
@pytest.mark.parametrize("name", ["int8", "int4"])
@given(
    rows=st.integers(1, 90),
    queries=st.integers(1, 40),
    half=st.integers(1, 70),
    seed=st.integers(0, 2**31),
)
def test_products_are_those_of_the_rounded_vectors(
    name: CodecName, integers: bool, rows: int, queries: int, half: int, seed: int
) -> None:
    vectors, query = units(rows, 2 * half, seed), units(queries, 2 * half, seed + 1)
    codec = fit(name, vectors)
    written = codec.encode(vectors)
    tensors = [torch.from_numpy(each) for each in np.array_split(written, [rows // 3, rows // 2])]
    with pytest.MonkeyPatch.context() as patched:
        if not integers:
            patched.setattr(token_codecs, "has_integer_products", lambda: False)
        products = codec.products(torch.from_numpy(query), rows)
    found = products.similarities(products.compare(tensors))
    exact = query.astype(np.float64) @ codec.decode(written).astype(np.float64).T
    # The query is rounded to 127 steps of its largest value, after the codec's steps are folded in.
    zero, steps = codec.parameters.astype(np.float64)
    numbers = (codec.decode(written) - zero) / steps
    bound = np.abs(query * steps).max(axis=1, keepdims=True) / 254 * np.abs(numbers).sum(axis=1)
    assert (np.abs(found - exact) <= bound * 1.001 + 1e-5).all()


def test_a_query_that_is_no_number_reaches_all_products() -> None:
    vectors = units(20, 8)
    query = torch.from_numpy(units(3, 8))
    query[1, 4] = torch.nan
    for name in NAMES:
        codec = fit(name, vectors)
        products = codec.products(query, 20)
        found = products.similarities(products.compare([torch.from_numpy(codec.encode(vectors))]))
        assert np.isnan(found[1]).all()
        assert np.isfinite(found[[0, 2]]).all()


def test_a_query_of_zeros_has_products_of_zero() -> None:
    vectors = units(20, 8)
    for name in NAMES:
        codec = fit(name, vectors)
        products = codec.products(torch.zeros(2, 8), 20)
        found = products.similarities(products.compare([torch.from_numpy(codec.encode(vectors))]))
        assert np.array_equal(found, np.zeros((2, 20)))


def test_more_rows_than_there_is_room_for_are_refused() -> None:
    codec = Int8Codec.fit(units(20, 8))
    products = codec.products(torch.ones(1, 8), 10)
    with pytest.raises(ValueError, match="11 rows were compared at once; there is room for 10"):
        products.compare([torch.zeros(11, 8, dtype=torch.int8)])


def test_torchs_integer_product_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def checked(product: object, **able: bool) -> bool:
        has_integer_products.cache_clear()
        monkeypatch.setattr(torch, "_int_mm", product)
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able)
        return has_integer_products()

    def exact(query: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return query.int() @ rows.int()

    def saturated(query: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return exact(query, rows).clamp(-(2**15), 2**15 - 1)

    def absent(query: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("not implemented for this device")

    try:
        assert checked(exact, avx512_vnni=True)
        assert not checked(exact, avx2=True)
        assert not checked(saturated, avx512_vnni=True)
        assert not checked(absent, avx512_vnni=True)
        monkeypatch.delattr(torch, "_int_mm")
        has_integer_products.cache_clear()
        assert not has_integer_products()
    finally:
        has_integer_products.cache_clear()
