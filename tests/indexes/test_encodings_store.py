"""Stored vectors are a bi-encoder's own, rounded within a bound; damaged and foreign stores are refused."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from farrank_indexes.chunk_encoder import ChunkEncoder
from farrank_indexes.document import CollectionError, IndexDocument
from farrank_indexes.encodings_store import (
    SCORE_WITHIN,
    EncodedText,
    EncodingsStore,
    EncodingsStoreBuilder,
    TruncatedEncodings,
    key_of,
)
from farrank_indexes.index_builder import IndexOptions, build_index
from farrank_indexes.stored_documents import Cut
from farrank_rankers.chunking import WHOLE_DOCUMENT, Chunking
from farrank_rankers.files.open import open_ranker
from farrank_runtimes.torch_runtime import TorchRuntime
from farrank_settings.errors import ConfigError

NUMBERS = st.floats(-60_000, 60_000, width=32)


class Given:
    """An encoder with given vectors, one for each document."""

    version, precision, max_document_tokens = "v1", "fp32", WHOLE_DOCUMENT

    def __init__(self, *vectors: Sequence[float]) -> None:
        self._vectors = iter(vectors)

    def encode(self, texts: Sequence[str]) -> list[EncodedText]:
        return [
            EncodedText(
                np.array([next(self._vectors)], dtype=np.float32), np.array([[0, 1]]), len(text), 1, (0, 0)
            )
            for text in texts
        ]

    def close(self) -> None:
        pass


def write(folder: Path, encoder: Given | ChunkEncoder, texts: Sequence[str], place: int = 0) -> Path:
    writer = EncodingsStoreBuilder(encoder).open(folder, place, None)
    writer.add(texts)
    writer.finish("it")
    writer.close()
    return folder / key_of(encoder.version)


def test_the_embedded_ranker_reads_from_it_what_it_would_encode(tmp_path: Path) -> None:
    texts = ["The Rhine rises in the Alps. " * 90, "", "Bread 🍞 is\r\n baked.", "word " * 5000]
    store = EncodingsStore(write(tmp_path, ChunkEncoder("embedded"), texts), "it")
    ranker = open_ranker("embedded")
    runtime = TorchRuntime(ranker, "fp32", "cpu", 1)
    for place, text in enumerate(texts):
        kept = store.read(place)
        read = ranker.reader.read_document(text, count_tokens=True)
        chunks = ranker.reader.split(read)
        assert kept.spans.tolist() == [[chunk.start, chunk.end] for chunk in chunks]
        assert kept.cut == Cut(read.characters_cut, read.tokens_cut or 0)
        assert store.characters(place) == len(text)
        expected = runtime.encode([ranker.reader.chunk_input(None, chunk) for chunk in chunks[:4]])
        vectors = torch.stack([row.vectors for row in expected.rows()]).numpy()
        assert kept.features.vectors.dtype == torch.float16
        # Unit vectors, whose products are cosines. Batches differ in the seventh digit.
        products = vectors @ vectors.T
        assert (
            np.abs(kept.features.vectors[:4].float().numpy() @ vectors.T - products).max()
            < SCORE_WITHIN + 1e-6
        )
    assert len(store.read(3).spans) == 33
    assert store.read(3).cut == Cut()
    with pytest.raises(KeyError):
        store.read(4)


@settings(deadline=None, max_examples=60)
@given(pair=st.integers(1, 9).flatmap(lambda n: st.tuples(*[st.lists(NUMBERS, min_size=n, max_size=n)] * 2)))
def test_rounding_moves_a_product_within_its_bound(
    tmp_path_factory: pytest.TempPathFactory, pair: tuple[list[float], list[float]]
) -> None:
    query, vector = (np.array(each, dtype=np.float64) for each in pair)
    folder = tmp_path_factory.mktemp("index")
    store = EncodingsStore(write(folder, Given(vector.tolist()), ["x"]), "it")
    kept = store.read(0).features.vectors[0].double().numpy()
    # Below 2⁻¹⁴ the steps of 16 bits no longer shrink: half a step is 2⁻²⁵.
    smallest = 2.0**-25 * np.abs(query).sum()
    bound = SCORE_WITHIN * np.linalg.norm(query) * np.linalg.norm(vector) + smallest
    assert abs(query @ kept - query @ vector) <= bound * (1 + 1e-9)


@pytest.mark.parametrize("number", [70_000.0, float("nan"), float("inf")])
def test_a_number_that_16_bits_cannot_hold_is_refused(tmp_path: Path, number: float) -> None:
    writer = EncodingsStoreBuilder(Given([1.0, number])).open(tmp_path, 0, None)
    with pytest.raises(ValueError, match="not finite, or too large"):
        writer.add(["x"])
    writer.close()


def test_the_documents_of_a_refused_number_are_named(tmp_path: Path) -> None:
    documents = [IndexDocument("a", "x"), IndexDocument("b", "y")]
    store = EncodingsStoreBuilder(Given([1.0], [float("inf")]))
    with pytest.raises(CollectionError, match="documents 'a' to 'b': a vector holds a number that is not"):
        build_index(documents, tmp_path / "out", IndexOptions([store]))
    assert list(tmp_path.iterdir()) == []


def test_parts_follow_each_other_and_an_interrupted_one_goes_on(tmp_path: Path) -> None:
    vectors = [[float(n), 0.5] for n in range(5)]
    write(tmp_path, Given(*vectors[:2]), ["a", "bb"])
    interrupted = EncodingsStoreBuilder(Given(*vectors[2:4])).open(tmp_path, 2, None)
    interrupted.add(["ccc"])
    state = json.loads(json.dumps(interrupted.flush()))
    interrupted.add(["lost"])
    interrupted.close()
    going_on = EncodingsStoreBuilder(Given(*vectors[3:])).open(tmp_path, 3, state)
    going_on.add(["dddd", "eeeee"])
    going_on.finish("it")
    going_on.close()
    store = EncodingsStore(tmp_path / key_of("v1"), "it")
    assert [store.read(place).features.vectors.tolist() for place in range(5)] == [[each] for each in vectors]
    assert [store.characters(place) for place in range(5)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", ["ends.i64", "texts.u32", "spans.u32", "vectors.f16"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    store = write(tmp_path, Given([1.0, 2.0], [3.0, 4.0]), ["a", "b"])
    path = store / "part-000000000000" / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 64
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"{name}: is damaged"):
        EncodingsStore(store, "it")
    path.write_bytes(content[:-1])
    with pytest.raises(ConfigError, match=rf"{name}: is damaged"):
        EncodingsStore(store, "it", verify=False)
    with pytest.raises(ConfigError, match="belongs to the index it"):
        EncodingsStore(store, "another")


def test_only_a_bi_encoder_encodes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is of family maxp; only a bi-encoder"):
        ChunkEncoder("embedded:maxp")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> EncodingsStore:
    """Documents of 0 to 1,203 words of one token each, encoded to their end."""
    folder = write(tmp_path_factory.mktemp("whole"), ChunkEncoder("embedded"), [*map(words, LENGTHS)])
    return EncodingsStore(folder, "it")


LENGTHS = (0, 1, 199, 200, 201, 349, 350, 351, 1203)


def words(count: int) -> str:
    return " ".join(["sea"] * count)


@pytest.mark.parametrize("limit", [200, 201, 349, 350, 499, 500, 1202, 1203, 5000])
def test_a_smaller_limit_reads_the_windows_within_it(whole: EncodingsStore, limit: int) -> None:
    chunking = Chunking("sliding", 200, 150, limit)
    for place, tokens in enumerate(LENGTHS):
        everything, beginning = whole.read(place), TruncatedEncodings(whole, chunking).read(place)
        kept = len(beginning.spans)
        assert beginning.spans.tolist() == everything.spans[:kept].tolist()
        assert torch.equal(beginning.features.vectors, everything.features.vectors[:kept])
        if tokens <= limit:
            assert (kept, beginning.cut) == (len(everything.spans), Cut())
            continue
        # One more window would exceed the limit, and all unread tokens are counted.
        assert (kept - 1) * 150 + 200 <= limit < kept * 150 + 200
        end = int(beginning.spans[-1][1])
        assert beginning.cut == Cut(len(words(tokens)) - end, words(tokens)[end:].count("sea"))


def test_encodings_say_which_rankers_can_read_them(tmp_path: Path) -> None:
    chunking = Chunking("sliding", 200, 150, 1000)

    def refused(store: EncodingsStore, limit: int) -> str:
        return store.why_not(store.manifest["version"], replace(chunking, max_document_tokens=limit))

    limited, short = (
        EncodingsStore(write(tmp_path / name, ChunkEncoder("embedded", None, 500), [words(count)]), "it")
        for name, count in (("limited", 501), ("short", 500))
    )
    assert limited.read(0).cut.tokens == 1
    assert (refused(limited, 500), refused(limited, 200)) == ("", "")
    assert "they hold 500 tokens of a document at most, and max_document_tokens is 501" in refused(
        limited, 501
    )
    assert "max_document_tokens is 199, less than one of their windows of 200" in refused(limited, 199)
    # No document is cut, so a larger limit changes nothing.
    assert refused(short, 501) == ""
    assert "another ranker" in short.why_not("-", chunking)


def test_encodings_of_an_earlier_format_are_refused_with_what_to_run(tmp_path: Path) -> None:
    folder = write(tmp_path, Given([1.0, 2.0]), ["sea"])
    manifest = json.loads((folder / "encodings.json").read_text())
    del manifest["sha256"]
    manifest["format"] = 1
    sealed = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (folder / "encodings.json").write_text(json.dumps({**manifest, "sha256": sealed}))
    with pytest.raises(ConfigError, match=r"encodings\.json: is of format 1.*farrank index … --overwrite"):
        EncodingsStore(folder, "it")
