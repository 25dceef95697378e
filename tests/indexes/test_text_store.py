"""Stored texts and their sentences equal the documents', and damaged or foreign stores are refused."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farrank_indexes.document import IndexDocument
from farrank_indexes.index_builder import IndexOptions, build_index, change_index
from farrank_indexes.index_manifest import read_manifest
from farrank_indexes.index_stores import IndexStores
from farrank_indexes.text_store import FOLDER, TextStore, TextStoreBuilder
from farrank_indexes.token_store import TokenStoreBuilder
from farrank_rankers.evidence.sentences import sentences
from farrank_rankers.tokenizer import TextTokenizer, TokenizerFiles
from farrank_settings.errors import ConfigError
from support import tiny_tokenizers

PIECES = ["Rivers are long. ", "Bread is baked.\n\n", "\n- item", "漢字。", "😀", "İ", "…", " ", "\ud800"]
TEXTS = st.lists(st.lists(st.sampled_from(PIECES), max_size=9).map("".join), max_size=5)


def write(folder: Path, texts: Sequence[str], place: int = 0) -> Path:
    writer = TextStoreBuilder().open(folder, place, None)
    writer.add(texts)
    writer.finish("it")
    writer.close()
    return folder / FOLDER


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(texts=TEXTS, added=TEXTS)
def test_texts_are_read_by_their_places(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], added: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("index")
    write(folder, texts)
    store = TextStore(write(folder, added, len(texts)), "it")
    for place, text in enumerate([*texts, *added]):
        read = store.read(place)
        # Lucene's process writes half a surrogate pair so, too.
        assert read.text == text.replace("\ud800", "?")
        assert read.bounds is not None
        assert read.bounds.tolist() == [list(span) for span in sentences(read.text)]
    for place in (-1, len(texts) + len(added)):
        with pytest.raises(KeyError):
            store.read(place)


def test_an_interrupted_part_goes_on_where_it_was_flushed(tmp_path: Path) -> None:
    writer = TextStoreBuilder().open(tmp_path, 0, None)
    writer.add(["The first one. It has two."])
    state = writer.flush()
    writer.add(["This one is written again."])
    writer.close()
    resumed = TextStoreBuilder().open(tmp_path, 0, state)
    resumed.add(["The second. And more."])
    resumed.finish("it")
    store = TextStore(tmp_path / FOLDER, "it")

    assert [store.read(place).text for place in range(2)] == [
        "The first one. It has two.",
        "The second. And more.",
    ]
    bounds = store.read(1).bounds
    assert bounds is not None
    assert bounds.tolist() == [[0, 11], [12, 21]]


@pytest.mark.parametrize(
    ("name", "why"), [("texts.utf8", "bytes"), ("sentences.u32", "bytes"), ("ends.i64", "bytes")]
)
def test_a_store_cut_short_is_refused(tmp_path: Path, name: str, why: str) -> None:
    folder = write(tmp_path, ["Rivers are long.", "Bread."])
    file = folder / "part-000000000000" / name
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(ConfigError, match=f"{name}: is damaged.*{why}"):
        TextStore(folder, "it", verify=False)


def test_changed_bytes_are_found(tmp_path: Path) -> None:
    folder = write(tmp_path, ["Rivers are long."])
    file = folder / "part-000000000000" / "texts.utf8"
    file.write_bytes(b"\xff" + file.read_bytes()[1:])
    with pytest.raises(ConfigError, match="its bytes have changed"):
        TextStore(folder, "it")
    with pytest.raises(ConfigError, match="the document at place 0 is damaged"):
        TextStore(folder, "it", verify=False).read(0)
    with pytest.raises(ConfigError, match="belongs to the index it, not to other"):
        TextStore(folder, "other")


def tokens() -> IndexOptions:
    tokenizer = TextTokenizer(TokenizerFiles(tiny_tokenizers.wordpiece().to_str()))
    return IndexOptions([TokenStoreBuilder(tokenizer)])


def opened(index: Path) -> IndexStores:
    manifest = read_manifest(index)
    assert manifest is not None
    return IndexStores(index, manifest)


def test_an_index_with_other_stores_has_it_and_grows_with_it(tmp_path: Path) -> None:
    index, bare = tmp_path / "index", tmp_path / "bare"
    some = [IndexDocument("a", "Sea and land."), IndexDocument("b", "Bread.")]
    build_index(some, index, tokens())
    change_index(index, [IndexDocument("c", "Rye.")], ["b"], tokens())
    stored = opened(index).texts
    assert stored is not None
    assert [stored.read(place).text for place in (0, 2)] == ["Sea and land.", "Rye."]

    build_index(some, bare)
    manifest = read_manifest(bare)
    assert manifest is not None
    assert manifest.stores == ()


def test_an_older_index_without_it_is_changed_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "index"
    with monkeypatch.context() as patch:
        patch.setattr("farrank_indexes.index_builder._with_texts", lambda options: options)
        build_index([IndexDocument("a", "Sea and land.")], index, tokens())
    assert opened(index).texts is None
    change_index(index, [IndexDocument("b", "Bread.")], (), tokens())
    assert opened(index).texts is None
