"""Codecs round vectors within their steps; products of integers are those of the rounded vectors."""

from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from farrank_runtimes import token_codecs
from farrank_runtimes.runtime import CodecName
from farrank_runtimes.token_codecs import (
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


ROTATION = [0.58684, -0.485383, 0.648091, 0.745469, 0.636312, -0.198454, 0.316062, -0.599592, -0.735251]


def rotated(vectors: Vectors) -> Vectors:
    """Vectors in the codec's own dimensions, in which it rounds."""
    return np.asarray(vectors @ token_codecs._rotation(vectors.shape[1]))


@given(rows=st.integers(2, 60), width=st.integers(1, 130), seed=st.integers(0, 2**31))
def test_int8_is_within_half_a_step_of_its_sample(rows: int, width: int, seed: int) -> None:
    vectors = units(rows, width, seed)
    codec = Int8Codec.fit(vectors)
    error = np.abs(rotated(codec.decode(codec.encode(vectors)) - vectors))
    assert (error <= codec.parameters[1] * 0.501 + 1e-6).all()


@pytest.mark.parametrize("width", [1, 2, 7, 96, 128])
def test_the_rotation_keeps_all_products(width: int) -> None:
    rotation = token_codecs._rotation(width)
    assert np.abs(rotation @ rotation.T - np.eye(width)).max() < 1e-6


def test_the_rotation_never_changes() -> None:
    # Rows of an index were written with it.
    assert token_codecs._rotation(3).ravel().tolist() == pytest.approx(ROTATION, abs=1e-6)


def test_the_rotation_spreads_what_a_dimension_holds() -> None:
    sample = units(5000, 128)
    sample[:, 7] *= 20.0
    found = (sample @ token_codecs._rotation(128)).std(axis=0)
    assert sample.std(axis=0).max() > 10 * np.median(sample.std(axis=0))
    assert found.max() < 5 * np.median(found)


def test_values_beyond_the_range_become_its_ends() -> None:
    sample = units(500, 8)
    for kind, ends in ((Int8Codec, (-127, 127)), (Int4Codec, (0, 15))):
        parameters = kind.fit(sample).parameters
        numbers = token_codecs._numbers(40 * sample, parameters, *ends)
        assert (numbers.min(), numbers.max()) == ends


def test_int8_has_room_beyond_a_small_sample() -> None:
    vectors = units(20_000, 64)
    numbers = Int8Codec.fit(vectors[:200]).encode(vectors)
    assert (np.abs(numbers.astype(int)) == 127).mean() < 1e-5


def test_int4_loses_a_tenth_of_a_products_spread() -> None:
    vectors, query = units(20_000, 128), units(50, 128, seed=1)
    codec = Int4Codec.fit(vectors)
    exact = query @ vectors.T
    error = query @ codec.decode(codec.encode(vectors)).T - exact
    assert error.std() < 0.12 * exact.std()


def test_int4_leaves_hardly_an_error_along_a_vector() -> None:
    vectors = units(2_000, 128)
    codec = Int4Codec.fit(vectors)
    zeros, steps = codec.parameters
    numbers = token_codecs._numbers(vectors, codec.parameters, 0, 15)
    nearest = (numbers * steps + zeros) @ token_codecs._rotation(128).T
    errors, nearest_errors = codec.decode(codec.encode(vectors)) - vectors, nearest - vectors
    along, nearest_along = ((each * vectors).sum(axis=1) for each in (errors, nearest_errors))
    assert np.abs(along).mean() < 0.15 * np.abs(nearest_along).mean()
    assert np.square(errors).mean() < 1.05 * np.square(nearest_errors).mean()
    assert np.abs((errors @ token_codecs._rotation(128)) / steps)[numbers % 15 > 0].max() < 1.01


def test_equal_vectors_are_kept() -> None:
    vectors = np.repeat(units(1, 6), 100, axis=0)
    for name in NAMES:
        codec = fit(name, vectors)
        assert codec.decode(codec.encode(vectors)) == pytest.approx(vectors, abs=3e-4)


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
    rotation = token_codecs._rotation(2 * half)
    numbers = (codec.decode(written) @ rotation - zero) / steps
    bound = np.abs(query @ rotation * steps).max(axis=1, keepdims=True) / 254 * np.abs(numbers).sum(axis=1)
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


def test_other_threads_keep_torchs_threads_while_one_compares() -> None:
    before, codec = torch.get_num_threads(), Int8Codec.fit(units(20, 8))
    torch.set_num_threads(3)
    try:
        with codec.products(torch.ones(1, 8), 10).on_threads():
            assert torch.get_num_threads() == 1
            with ThreadPoolExecutor(1) as other:
                # A thread's number is set for good when it uses torch for the first time.
                assert other.submit(torch.get_num_threads).result() == 3
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_vectors_are_rounded_alike_in_any_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = units(50, 32)
    codecs = [fit(name, vectors) for name in NAMES]
    whole = [codec.encode(vectors) for codec in codecs]
    monkeypatch.setattr(token_codecs, "_BLOCK_ROWS", 7)
    assert all(map(np.array_equal, whole, [codec.encode(vectors) for codec in codecs]))
    assert all(len(codec.encode(vectors[:0])) == 0 for codec in codecs)


@pytest.mark.filterwarnings("error")
def test_vectors_far_outside_the_sample_are_rounded() -> None:
    vectors = units(50, 32)
    codec = Int4Codec.fit(vectors)
    for scale in (0.0, 1e-30, 1e19):
        assert np.isfinite(codec.decode(codec.encode(np.float32(scale) * vectors))).all()


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_more_rows_than_there_is_room_for_are_not_joined(name: CodecName) -> None:
    codec = fit(name, units(20, 8))
    rows = torch.from_numpy(codec.encode(units(11, 8)))
    with pytest.raises(ValueError, match="11 rows were joined; there is room for 10"):
        codec.products(torch.ones(1, 8), 10).compare([rows[:5], rows[5:]])


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
