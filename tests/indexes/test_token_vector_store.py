"""Stored token vectors are the encoder's, rounded by the codec; their files are like other stores'."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from farrank_calls.errors import Unavailable
from farrank_indexes import token_vector_store
from farrank_indexes.document import CollectionError, IndexDocument
from farrank_indexes.encodings_store import TruncatedEncodings
from farrank_indexes.index_builder import IndexOptions, build_index, change_index
from farrank_indexes.index_manifest import read_manifest
from farrank_indexes.index_stores import IndexStores
from farrank_indexes.stored_documents import Cut, EncodedDocument
from farrank_indexes.token_vector_store import (
    EncodedTokens,
    TokenVectorsBuilder,
    TokenVectorStore,
    TokenVectorsWriter,
    key_of,
)
from farrank_rankers.chunking import WHOLE_DOCUMENT, Chunking
from farrank_rankers.family import MaxSimOptions
from farrank_runtimes.maxsim import compared_vectors, score_token_vectors
from farrank_runtimes.runtime import CodecName
from farrank_settings.errors import ConfigError

WIDTH, WINDOW = 8, 6
CODECS: tuple[CodecName, ...] = get_args(CodecName)
# The largest error of a number, for vectors of length 1 and 8 dimensions.
WITHIN: dict[CodecName, float] = {"fp16": 0.0005, "int8": 0.02, "int4": 0.3}


class Letters:
    """Encodes each letter of a text as a token: a vector that its code seeds. "." has none.

    A window has a special vector before its letters, and a document at least one window.
    """

    version, precision, width = "letters", "fp32", WIDTH

    def __init__(self, max_document_tokens: int = WHOLE_DOCUMENT) -> None:
        self.max_document_tokens = max_document_tokens
        self.is_closed = False

    def encode(self, texts: Sequence[str]) -> list[EncodedTokens]:
        return [self._encoded(text) for text in texts]

    def close(self) -> None:
        self.is_closed = True

    def _encoded(self, text: str) -> EncodedTokens:
        read = text[: self.max_document_tokens]
        starts = list(range(0, max(1, len(read)), WINDOW))
        vectors, ends = [], []
        for start in starts:
            letters = read[start : start + WINDOW].replace(".", "")
            vectors += [vector_of("["), *map(vector_of, letters)]
            ends.append(len(vectors))
        spans = [(start, min(start + WINDOW, len(read))) for start in starts]
        left = len(text) - len(read)
        return EncodedTokens(
            vectors=np.array(vectors),
            window_ends=np.array(ends, np.int64),
            spans=np.array(spans, np.uint32),
            characters=len(text),
            tokens=len(read),
            cut=(left, left),
        )


def vector_of(letter: str) -> NDArray[np.float32]:
    if letter == "!":
        return np.full(WIDTH, np.nan, np.float32)
    vector = np.random.default_rng(ord(letter)).standard_normal(WIDTH)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def write(
    folder: Path, texts: Sequence[str], place: int = 0, codec: CodecName = "int8", limit: int = WHOLE_DOCUMENT
) -> Path:
    writer = TokenVectorsBuilder(Letters(limit), codec).open(folder, place, None)
    writer.add(texts)
    writer.finish("it")
    writer.close()
    return folder / key_of("letters")


def restored(document: EncodedDocument) -> NDArray[np.float32]:
    rows = compared_vectors(document.features)
    assert rows.codec is not None
    return rows.codec.decode(rows.rows.numpy())


TEXTS = ["seventeen letters", "", "six is", "......", "a.b.c.d.e"]


@pytest.mark.parametrize("codec", CODECS)
def test_it_has_the_encoders_vectors(tmp_path: Path, codec: CodecName) -> None:
    store = TokenVectorStore(write(tmp_path, TEXTS, codec=codec), "it")
    for place, expected in enumerate(Letters().encode(TEXTS)):
        found = store.read(place)
        assert found.features.chunks == len(expected.spans)
        assert found.features.windows is not None
        assert found.features.windows.ends.tolist() == expected.window_ends.tolist()
        assert found.spans.tolist() == expected.spans.tolist()
        assert found.cut == Cut()
        assert store.characters(place) == len(TEXTS[place])
        assert np.abs(restored(found) - expected.vectors).max() < WITHIN[codec]
    with pytest.raises(KeyError):
        store.read(len(TEXTS))


def test_a_store_is_scored_from_its_rows(tmp_path: Path) -> None:
    store = TokenVectorStore(write(tmp_path, TEXTS), "it")
    query = torch.from_numpy(np.array([vector_of(letter) for letter in "sea"]))
    documents = [compared_vectors(store.read(place).features) for place in range(len(TEXTS))]
    found = score_token_vectors(documents, [query] * len(TEXTS), MaxSimOptions())
    for encoded, score, of_windows in zip(
        Letters().encode(TEXTS), found.scores, found.chunk_scores, strict=True
    ):
        products = query.numpy() @ encoded.vectors.T
        assert score == pytest.approx(products.max(axis=1).sum(), abs=0.05)
        windows = np.split(products, encoded.window_ends[:-1], axis=1)
        assert of_windows == pytest.approx([each.max(axis=1).sum() for each in windows], abs=0.05)


def test_rows_are_the_mapped_files(tmp_path: Path) -> None:
    store = TokenVectorStore(write(tmp_path, ["sea"] * 3), "it")
    one, same = (store.read(1).features.vectors for _ in range(2))
    assert one.data_ptr() == same.data_ptr()
    del store
    assert one.tolist() == same.tolist()  # they outlive the store, as those of a call do a reload


def test_a_file_that_is_truncated_costs_the_call_and_not_the_process(tmp_path: Path) -> None:
    folder = write(tmp_path, ["sea" * 3000, "end"])
    store = TokenVectorStore(folder, "it")
    os.truncate(folder / "part-000000000000" / "vectors.int8", 5000)
    with pytest.raises(Unavailable, match=r"vectors\.int8 of the index was truncated while it was read"):
        store.read(1)


@pytest.mark.parametrize("sample", [5, 10_000])
def test_parts_follow_each_other_and_an_interrupted_one_goes_on(
    tmp_path: Path, sample: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_vector_store, "SAMPLE", sample)
    texts = ["one", "two letters", "three", "four and more of them", "five"]
    write(tmp_path, texts[:2])
    builder = TokenVectorsBuilder(Letters())
    interrupted = builder.open(tmp_path, 2, None)
    interrupted.add(texts[2:3])
    state = json.loads(json.dumps(interrupted.flush()))
    interrupted.add(["lost"])
    interrupted.close()
    going_on = builder.open(tmp_path, 3, state)
    going_on.add(texts[3:])
    going_on.finish("it")
    going_on.close()
    store = TokenVectorStore(tmp_path / key_of("letters"), "it")
    for place, expected in enumerate(Letters().encode(texts)):
        found = store.read(place)
        assert found.spans.tolist() == expected.spans.tolist()
        # After an interruption, and after a small sample, the range is that of the documents before.
        if place < 3 and sample == 10_000:
            assert np.abs(restored(found) - expected.vectors).max() < WITHIN["int8"]


def test_each_part_has_a_codec_of_its_own(tmp_path: Path) -> None:
    write(tmp_path, ["aaaa"])
    store = TokenVectorStore(write(tmp_path, ["zzzz"], place=1), "it")
    codecs = [compared_vectors(store.read(place).features).codec for place in (0, 1)]
    assert codecs[0] is not None
    assert codecs[1] is not None
    assert codecs[0].parameters.tolist() != codecs[1].parameters.tolist()
    for place, letter in enumerate("az"):
        assert np.abs(restored(store.read(place))[1:] - vector_of(letter)).max() < WITHIN["int8"]


def test_the_first_documents_fit_the_codec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_vector_store, "SAMPLE", 8)
    writer = TokenVectorsBuilder(Letters()).open(tmp_path, 0, None)

    def rows() -> int:
        return int(writer.flush()["sizes"]["vectors.int8"]) // WIDTH

    writer.add(["aaa", "bb"])  # 7 vectors
    assert writer._codec is None
    writer.add(["c"])
    assert writer._codec is not None
    assert rows() == 9
    writer.close()


def test_documents_without_vectors_are_kept(tmp_path: Path) -> None:
    class Bare(Letters):
        def _encoded(self, text: str) -> EncodedTokens:
            bare = super()._encoded(text)
            none = np.zeros((0, WIDTH), np.float32)
            return replace(bare, vectors=none, window_ends=np.zeros_like(bare.window_ends))

    for codec in CODECS:
        folder = tmp_path / codec
        writer = TokenVectorsBuilder(Bare(), codec).open(folder, 0, None)
        writer.add(["sea", "letters"])
        writer.finish("it")
        writer.close()
        store = TokenVectorStore(folder / key_of("letters"), "it")
        document = compared_vectors(store.read(1).features)
        assert document.ends.tolist() == [0, 0]
        found = score_token_vectors([document], [torch.ones(2, WIDTH)], MaxSimOptions())
        assert (found.scores, found.chunk_scores) == ([-1e9], [[-1e9, -1e9]])


def test_a_vector_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    def writer() -> TokenVectorsWriter:
        return TokenVectorsBuilder(Letters()).open(tmp_path, 0, None)

    held = writer()
    with pytest.raises(ValueError, match="not finite"):
        held.add(["sea!"])
    held.close()
    fitted = writer()
    fitted.add(["sea"])
    fitted.flush()
    with pytest.raises(ValueError, match="not finite"):
        fitted.add(["sea!"])
    fitted.close()


@pytest.mark.parametrize("name", ["ends.i64", "texts.u32", "windows.u32", "vectors.int8"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path, TEXTS)
    path = folder / "part-000000000000" / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 64
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"{name}: is damaged"):
        TokenVectorStore(folder, "it")
    path.write_bytes(content[:-1])
    with pytest.raises(ConfigError, match=rf"{name}: is damaged"):
        TokenVectorStore(folder, "it", verify=False)
    with pytest.raises(ConfigError, match="belongs to the index it"):
        TokenVectorStore(folder, "another")


@pytest.mark.parametrize("block", [1, 2, 3, 100])
@pytest.mark.parametrize(("at", "value"), [(0, -1), (1, 0), (4, 1), (5, 3), (8, 10**6)])
def test_ends_that_do_not_rise_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, at: int, value: int
) -> None:
    monkeypatch.setattr(token_vector_store, "_BLOCK", block)
    folder = write(tmp_path, TEXTS)
    TokenVectorStore(folder, "it")
    path = folder / "part-000000000000" / "ends.i64"
    ends = np.fromfile(path, dtype="<i8")
    ends[at] = value
    ends.tofile(path)
    with pytest.raises(ConfigError, match=r"ends\.i64: is damaged \(its places do not fit"):
        TokenVectorStore(folder, "it", verify=False)


def test_damaged_windows_are_refused_where_they_are_read(tmp_path: Path) -> None:
    folder = write(tmp_path, ["seventeen letters"])
    path = folder / "part-000000000000" / "windows.u32"
    windows = np.fromfile(path, dtype="<u4")
    windows[3] = 10**6
    windows.tofile(path)
    store = TokenVectorStore(folder, "it", verify=False)
    with pytest.raises(ConfigError, match="the stored windows of the document at place 0 are damaged"):
        store.read(0)


def test_an_addition_with_another_codec_is_refused(tmp_path: Path) -> None:
    write(tmp_path, ["sea"])
    with pytest.raises(ConfigError, match="its codec is 'int8', and the addition has 'int4'"):
        write(tmp_path, ["sea"], place=1, codec="int4")


@pytest.mark.parametrize("limit", [6, 7, 11, 12, 13, 40])
def test_a_smaller_limit_reads_the_windows_within_it(tmp_path: Path, limit: int) -> None:
    texts = ["", "one", "sixsix", "a.text of 17 toks", "z" * 30]
    store = TokenVectorStore(write(tmp_path, texts), "it")
    chunking = Chunking("disjoint", WINDOW, WINDOW, limit)
    for place, text in enumerate(texts):
        everything, beginning = store.read(place), TruncatedEncodings(store, chunking).read(place)
        kept = beginning.features.chunks
        assert beginning.spans.tolist() == everything.spans[:kept].tolist()
        assert (
            restored(beginning).tolist()
            == restored(
                everything.__class__(everything.features.first(kept), beginning.spans, Cut())
            ).tolist()
        )
        if len(text) <= limit:
            assert (kept, beginning.cut) == (everything.features.chunks, Cut())
            continue
        assert kept * WINDOW <= limit < (kept + 1) * WINDOW
        assert beginning.cut == Cut(len(text) - kept * WINDOW, len(text) - kept * WINDOW)


def test_it_says_which_rankers_can_read_it(tmp_path: Path) -> None:
    chunking = Chunking("disjoint", WINDOW, WINDOW, 12)
    store = TokenVectorStore(write(tmp_path, ["z" * 30], limit=12), "it")
    assert store.read(0).cut == Cut(18, 18)
    assert store.why_not("letters", chunking) == ""
    assert "another ranker" in store.why_not("-", chunking)
    longer = replace(chunking, max_document_tokens=13)
    assert "they hold 12 tokens of a document at most" in store.why_not("letters", longer)


def test_an_index_is_built_and_changed_with_it(tmp_path: Path) -> None:
    index = tmp_path / "index"
    texts = {"a": "sea and land", "b": "bread", "c": "a much longer document about bread"}
    options = IndexOptions([TokenVectorsBuilder(Letters())])
    build_index([IndexDocument(*each) for each in list(texts.items())[:2]], index, options)
    added = IndexOptions([TokenVectorsBuilder(Letters())])
    change_index(index, [IndexDocument("c", texts["c"])], ["b"], added)
    manifest = read_manifest(index)
    assert manifest is not None
    assert manifest.stores == ("texts", key_of("letters"))
    assert manifest.vectors is None  # Lucene's vectors are a bi-encoder's
    stores = IndexStores(index, manifest)
    found = stores.encodings_for("letters", Chunking("disjoint", WINDOW, WINDOW, WHOLE_DOCUMENT))
    assert found is not None
    for place, name in ((0, "a"), (2, "c")):
        (expected,) = Letters().encode([texts[name]])
        assert np.abs(restored(found.read(place)) - expected.vectors).max() < WITHIN["int8"]
        assert stores.length(place) == len(texts[name])
    assert stores.why_no_encodings("letters", Chunking("disjoint", WINDOW, WINDOW, 9)) == ""
    assert stores.encodings_for("other", Chunking("disjoint", WINDOW, WINDOW, 9)) is None
    with pytest.raises(CollectionError, match=r"documents 'd' to 'd': .* not finite"):
        change_index(
            index, [IndexDocument("d", "z" * 10 + "!")], (), IndexOptions([TokenVectorsBuilder(Letters())])
        )
