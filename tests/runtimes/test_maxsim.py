"""MaxSim of ragged documents is the formula's, whatever the tiles and the codec."""

from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from farrank_rankers.family import MaxSimOptions, WindowAggregation
from farrank_rankers.features import Features, Windows
from farrank_rankers.token_vectors import NOTHING_TO_COMPARE
from farrank_rankers.tokens import Role
from farrank_runtimes import maxsim
from farrank_runtimes.maxsim import (
    DocumentWindows,
    score_by_maxsim,
    score_token_vectors,
    window_maxima,
)
from farrank_runtimes.runtime import CodecName
from farrank_runtimes.token_codecs import CodedVectors, Vectors, fit

WIDTH = 16
UNION = MaxSimOptions()
AGGREGATIONS: tuple[WindowAggregation, ...] = get_args(WindowAggregation)
CODECS: tuple[CodecName | None, ...] = (None, *get_args(CodecName))

# The number of vectors of each window of each document.
WINDOWS = st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=6), min_size=1, max_size=8)


def units(generator: np.random.Generator, rows: int) -> Vectors:
    vectors = generator.standard_normal((rows, WIDTH))
    unit: Vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return unit


def made(
    windows: list[list[int]], codec_name: CodecName | None, generator: np.random.Generator
) -> tuple[list[CodedVectors], list[NDArray[np.float64]]]:
    """Make documents, and the vectors that a score must be of: those that the codec restores."""
    codec = None if codec_name is None else fit(codec_name, units(generator, 500))
    documents, restored = [], []
    for counts in windows:
        vectors = units(generator, sum(counts))
        rows = vectors if codec is None else codec.encode(vectors)
        ends = np.cumsum(counts, dtype=np.int64)
        documents.append(CodedVectors(torch.from_numpy(rows), ends, codec))
        restored.append((vectors if codec is None else codec.decode(rows)).astype(np.float64))
    return documents, restored


def formula(
    query: NDArray[np.float64], vectors: NDArray[np.float64], ends: NDArray[np.int64], how: WindowAggregation
) -> tuple[float, list[float]]:
    """Compute MaxSim in fp64, word by word."""

    def of(some: NDArray[np.float64]) -> float:
        return sum(max(float(q @ d) for d in some) for q in query) if len(some) else NOTHING_TO_COMPARE

    windows = [of(each) for each in np.split(vectors, ends[:-1])]
    if how == "union":
        return of(vectors), windows
    if how == "max":
        return max(windows), windows
    return windows[0], [windows[0], *[-np.inf] * (len(windows) - 1)]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("how", AGGREGATIONS)
@given(windows=WINDOWS, tile=st.integers(1, 200), callers=st.integers(1, 3), seed=st.integers(0, 2**31))
def test_it_is_the_formula(
    codec: CodecName | None,
    how: WindowAggregation,
    windows: list[list[int]],
    tile: int,
    callers: int,
    seed: int,
) -> None:
    generator = np.random.default_rng(seed)
    documents, restored = made(windows, codec, generator)
    asked = [torch.from_numpy(units(generator, int(generator.integers(1, 6)))) for _ in range(callers)]
    queries = [asked[place % callers] for place in range(len(documents))]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(maxsim, "_TILE_ROWS", tile)
        found = score_token_vectors(documents, queries, MaxSimOptions(aggregation=how))
    for place, (document, vectors, query) in enumerate(zip(documents, restored, queries, strict=True)):
        score, of_windows = formula(query.double().numpy(), vectors, document.ends, how)
        # int8 and int4 round the query, too: by at most half of 1/127 of its largest value.
        within = (1e-5 if codec in (None, "fp16") else 0.02) * len(query)
        assert found.scores[place] == pytest.approx(score, abs=within)
        assert found.chunk_scores[place] == pytest.approx(of_windows, abs=within)


def test_documents_of_several_codecs_are_scored_in_one_call() -> None:
    generator = np.random.default_rng(1)
    query = torch.from_numpy(units(generator, 4))
    mixed, expected = [], []
    for codec in CODECS:
        documents, restored = made([[5, 6], [7]], codec, generator)
        mixed += documents
        expected += [
            formula(query.double().numpy(), vectors, document.ends, "union")[0]
            for document, vectors in zip(documents, restored, strict=True)
        ]
    found = score_token_vectors(mixed, [query] * len(mixed), UNION)
    assert found.scores == pytest.approx(expected, abs=0.08)


def test_a_score_does_not_depend_on_the_other_documents() -> None:
    generator = np.random.default_rng(2)
    for codec in CODECS[1:3]:
        documents, _ = made([[30, 20], [9], [40, 40, 3]], codec, generator)
        query = torch.from_numpy(units(generator, 8))
        together = score_token_vectors(documents, [query] * 3, UNION)
        alone = [score_token_vectors([each], [query], UNION) for each in documents]
        assert together.scores == [each.scores[0] for each in alone]
        assert together.chunk_scores == [each.chunk_scores[0] for each in alone]


def test_rows_may_be_of_a_read_only_file() -> None:
    generator = np.random.default_rng(3)
    (document,), _ = made([[30]], "int8", generator)
    query = torch.from_numpy(units(generator, 2))
    before = document.rows.clone()
    score_token_vectors([document], [query], UNION)
    assert torch.equal(document.rows, before)


def test_windows_without_vectors_have_no_maximum() -> None:
    (document,), _ = made([[0, 3, 0]], None, np.random.default_rng(4))
    maxima = window_maxima(DocumentWindows([document]), torch.ones(2, WIDTH), np.arange(3))
    assert np.isneginf(maxima[:, [0, 2]]).all()
    assert np.isfinite(maxima[:, 1]).all()


@pytest.mark.parametrize("codec", CODECS)
@given(
    windows=WINDOWS,
    left_out=st.integers(0, 2),
    skipped=st.sets(st.integers(0, 47)),
    tile=st.integers(1, 200),
    seed=st.integers(0, 2**31),
)
def test_rows_between_windows_have_no_part_in_maxima(
    codec: CodecName | None,
    windows: list[list[int]],
    left_out: int,
    skipped: set[int],
    tile: int,
    seed: int,
) -> None:
    generator = np.random.default_rng(seed)
    counts = [[each + 2 * left_out for each in own] for own in windows]
    documents, restored = made(counts, codec, generator)
    query = torch.from_numpy(units(generator, 3))
    of_documents = DocumentWindows(documents)
    of_documents.starts += left_out
    of_documents.ends = of_documents.ends - left_out
    some = np.array([each for each in range(len(of_documents.ends)) if each not in skipped], dtype=np.int64)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(maxsim, "_TILE_ROWS", tile)
        found = window_maxima(of_documents, query, some)
    expected = np.full((3, len(some)), -np.inf)
    for place, window in enumerate(some):
        own = restored[of_documents.owners[window]][of_documents.starts[window] : of_documents.ends[window]]
        if len(own):
            expected[:, place] = (query.double().numpy() @ own.T).max(axis=1)
    assert found == pytest.approx(expected, abs=1e-5 if codec in (None, "fp16") else 0.02)


def test_a_tile_has_a_part_of_one_document_or_several_whole_ones() -> None:
    documents, _ = made([[30, 30], [20, 20], [10], [10], [10, 50, 50], [9]], "int8", np.random.default_rng(8))
    windows = DocumentWindows(documents)
    tiles = list(windows.tiles(np.arange(len(windows.ends)), 70))
    assert [[len(each) for each in tile.rows] for tile in tiles] == [[60], [40, 10, 10], [60], [50], [9]]
    assert tiles[0].rows[0].data_ptr() == documents[0].rows.data_ptr()
    assert [tile.total for tile in tiles] == [60, 60, 60, 50, 9]


def test_a_number_that_is_none_reaches_the_score() -> None:
    (document,), _ = made([[3, 4]], None, np.random.default_rng(5))
    document.rows[5, 2] = torch.nan
    found = score_token_vectors([document], [torch.ones(2, WIDTH)], UNION)
    assert np.isnan(found.scores[0])
    assert np.isnan(found.chunk_scores[0]).tolist() == [False, True]


def test_without_documents_there_are_no_scores() -> None:
    assert score_token_vectors([], [], UNION).scores == []


def test_sentence_transformers_has_the_same_scores() -> None:
    similarity = pytest.importorskip("sentence_transformers.util.similarity")
    generator = np.random.default_rng(6)
    documents, _ = made([[40], [9], [25]], None, generator)
    query = torch.from_numpy(units(generator, 7))
    expected = similarity.maxsim([query], [document.rows for document in documents])
    found = score_token_vectors(documents, [query] * 3, UNION)
    assert found.scores == pytest.approx(expected[0].tolist(), abs=1e-5)


def test_encoded_documents_and_those_of_a_store_are_scored_in_one_call() -> None:
    generator = np.random.default_rng(7)
    vectors, roles = torch.from_numpy(units(generator, 24).reshape(4, 6, WIDTH)), torch.zeros(4, 6).long()
    roles[:, :4], roles[1, 3], roles[3] = Role.DOCUMENT, Role.PADDING, Role.PADDING
    vectors[roles == Role.PADDING] = torch.nan
    codec = fit("int8", units(generator, 500))
    ends = np.array([4, 7, 11, 11])
    rows = codec.encode(vectors[roles != Role.PADDING].numpy())
    stored = Features(torch.from_numpy(rows), windows=Windows(ends, codec))
    query = Features(torch.from_numpy(units(generator, 3)), torch.tensor([1, 2, 0]))
    found = score_by_maxsim([Features(vectors, roles), stored], [query, query], MaxSimOptions())
    expected = formula(
        query.vectors[:2].double().numpy(), vectors[roles != Role.PADDING].double().numpy(), ends, "union"
    )
    for score, of_windows in zip(found.scores, found.chunk_scores, strict=True):
        assert score == pytest.approx(expected[0], abs=0.04)
        assert of_windows == pytest.approx(expected[1], abs=0.04)
    assert found.scores[0] == pytest.approx(expected[0], abs=1e-5)
