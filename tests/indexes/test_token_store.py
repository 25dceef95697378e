"""Stored tokens equal those of the texts, and damaged or foreign stores are refused."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farrank_indexes.token_store import TokenStore, TokenStoreBuilder, key_of
from farrank_rankers.chunking import Chunking, chunk_bounds, readable_tokens
from farrank_rankers.tokenizer import TextTokenizer, TokenizerFiles
from farrank_rankers.tokens import TokenizedText
from farrank_settings.errors import ConfigError
from support import tiny_tokenizers

KINDS = ("wordpiece", "byte_level", "metaspace", "sentence_starts")
TOKENIZERS = {
    kind: TextTokenizer(TokenizerFiles(getattr(tiny_tokenizers, kind)().to_str())) for kind in KINDS
}
WORDS = ["hello", "world", "naïve", "cafe\u0301", "😀", "👩\u200d👩\u200d👧", "漢字", "𝒳", "ﬁ", "İ", "ß", "1"]
SPACES = [" ", "  ", " " * 300, "\n", "\t", "\r\n", "\u00a0", "\u3000", "\u200b", "\x00", "\x0b", "\u0301"]
LONG = ["supercalifragilistic" * 20, "." * 300, "▁", "'s", "[SEP]"]
TEXTS = st.lists(st.lists(st.sampled_from(WORDS + SPACES + LONG), max_size=30).map("".join), max_size=6)


def write(
    folder: Path,
    kind: str,
    texts: Sequence[str],
    *,
    place: int = 0,
    index: str = "it",
    limit: int | None = None,
) -> Path:
    writer = TokenStoreBuilder(TOKENIZERS[kind], limit).open(folder, place, None)
    writer.add(texts)
    writer.finish(index)
    writer.close()
    return folder / key_of(TOKENIZERS[kind])


def same(one: TokenizedText, other: TokenizedText) -> bool:
    arrays = all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in ("ids", "starts", "ends")
    )
    dtypes = [each.dtype for each in (one.ids, one.starts, one.ends)]
    return (
        arrays
        and dtypes == [np.int32] * 3
        and (one.characters_cut, one.total_tokens) == (other.characters_cut, other.total_tokens)
    )


@pytest.mark.parametrize("kind", KINDS)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
    max_examples=40,
)
@given(
    texts=TEXTS,
    added=TEXTS,
    window=st.integers(1, 9),
    overlap=st.integers(0, 8),
    most=st.integers(1, 60),
    max_chunks=st.none() | st.integers(1, 4),
)
def test_stored_tokens_are_those_of_the_texts(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    texts: list[str],
    added: list[str],
    window: int,
    overlap: int,
    most: int,
    max_chunks: int | None,
) -> None:
    folder = tmp_path_factory.mktemp("index")
    write(folder, kind, texts)
    store = TokenStore(write(folder, kind, added, place=len(texts)), "it")
    tokenizer = TOKENIZERS[kind]
    chunking = Chunking("sliding", window, max(1, window - overlap), most)
    limit = readable_tokens(chunking, max_chunks)
    for place, text in enumerate([*texts, *added]):
        read = store.read(place, limit)
        assert same(read, tokenizer.read(text, limit, count_tokens=True))
        assert store.characters(place) == len(text)
        # So are their chunks, which are slices.
        assert len(chunk_bounds(chunking, len(read), max_chunks)) > 0
    for place in (-1, len(texts) + len(added)):
        with pytest.raises(KeyError):
            store.read(place, limit)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(texts=TEXTS, kept=st.integers(1, 40), read=st.integers(1, 60))
def test_a_store_of_beginnings_is_read_up_to_its_limit(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], kept: int, read: int
) -> None:
    tokenizer = TOKENIZERS["wordpiece"]
    store = TokenStore(write(tmp_path_factory.mktemp("index"), "wordpiece", texts, limit=kept), "it")
    are_whole = all(len(tokenizer.read(text, 10**6)) <= kept for text in texts)
    why = store.why_not(tokenizer, read)
    if read > kept and not are_whole:
        assert why == f"they hold {kept} tokens of a document at most, and max_document_tokens is {read}"
    else:
        assert why == ""
    for place, text in enumerate(texts):
        wanted = tokenizer.read(text, min(read, kept), count_tokens=True)
        assert same(store.read(place, read), wanted)


def test_a_text_of_many_pieces_and_a_large_vocabulary(tmp_path: Path) -> None:
    text = "hello world naïve " * 20_000
    store = TokenStore(write(tmp_path, "byte_level", ["", text]), "it")
    tokenizer = TOKENIZERS["byte_level"]
    assert same(store.read(1, 10**9), tokenizer.read(text, 10**9, count_tokens=True))
    assert same(store.read(1, 70_000), tokenizer.read(text, 70_000, count_tokens=True))

    parsed = json.loads(tiny_tokenizers.wordpiece().to_str())
    vocabulary = parsed["model"]["vocab"]
    vocabulary |= {f"word{number}": number for number in range(len(vocabulary), 2**16 + 9)}
    many = TextTokenizer(TokenizerFiles(json.dumps(parsed)))
    writer = TokenStoreBuilder(many).open(tmp_path, 0, None)
    writer.add([f"word{2**16 + 8} hello"])
    writer.finish("it")
    writer.close()
    read = TokenStore(tmp_path / key_of(many), "it").read(0, 10)
    assert read.ids[0] == 2**16 + 8
    assert same(read, many.read(f"word{2**16 + 8} hello", 10, count_tokens=True))


def test_ids_beyond_the_number_of_tokens_are_kept(tmp_path: Path) -> None:
    parsed = json.loads(tiny_tokenizers.wordpiece().to_str())
    parsed["model"]["vocab"]["faraway"] = 2**17
    gap = TextTokenizer(TokenizerFiles(json.dumps(parsed)))
    writer = TokenStoreBuilder(gap).open(tmp_path, 0, None)
    writer.add(["hello faraway"])
    writer.finish("it")
    writer.close()
    read = TokenStore(tmp_path / key_of(gap), "it").read(0, 10)
    assert read.ids[-1] == 2**17
    assert same(read, gap.read("hello faraway", 10, count_tokens=True))


def test_an_interrupted_writing_goes_on_from_its_last_flush(tmp_path: Path) -> None:
    texts = ["hello world", "", "naïve 😀 " * 50, "world"]
    store = TokenStoreBuilder(TOKENIZERS["wordpiece"])
    interrupted = store.open(tmp_path / "a", 0, None)
    interrupted.add(texts[:2])
    state = json.loads(json.dumps(interrupted.flush()))
    interrupted.add(texts[2:3])
    interrupted.close()
    going_on = store.open(tmp_path / "a", 2, state)
    going_on.add(texts[2:])
    going_on.finish("it")
    going_on.close()
    write(tmp_path / "b", "wordpiece", texts)
    files = [each.relative_to(tmp_path / "a") for each in (tmp_path / "a").rglob("*") if each.is_file()]
    assert len(files) == 8
    assert [(tmp_path / "a" / each).read_bytes() for each in files] == [
        (tmp_path / "b" / each).read_bytes() for each in files
    ]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    "name", ["ends.i64", "characters.u32", "tokens.u32", "ids.u16", "spans.u8", "long_at.i64", "long.i32"]
)
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (flip, "its bytes have changed"),
        (shorten, "it has .* bytes instead of"),
        (Path.unlink, "it is missing"),
    ],
)
def test_a_damaged_file_is_named(
    tmp_path: Path, name: str, damage: Callable[[Path], None], message: str
) -> None:
    store = write(tmp_path, "wordpiece", ["hello  world" + " " * 300 + "naïve" * 100, "world"])
    damage(store / "part-000000000000" / name)
    with pytest.raises(ConfigError, match=rf"{name}: is damaged \({message}"):
        TokenStore(store, "it")


def test_an_unverified_store_is_checked_superficially(tmp_path: Path) -> None:
    store = write(tmp_path, "wordpiece", ["hello world", "world"])
    part = store / "part-000000000000"
    (part / "ids.u16").write_bytes(b"\xff" * (part / "ids.u16").stat().st_size)
    with pytest.raises(ConfigError, match="the document at place 1 are damaged"):
        TokenStore(store, "it", verify=False).read(1, 9)
    (part / "ends.i64").write_bytes(np.array([3, 2], dtype="<i8").tobytes())
    with pytest.raises(ConfigError, match=r"ends\.i64: is damaged"):
        TokenStore(store, "it", verify=False)


def sealed(values: dict[str, Any]) -> dict[str, Any]:
    """Write a manifest as another version could have written it."""
    said = {name: value for name, value in values.items() if name != "sha256"}
    return said | {"sha256": hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()}


def test_a_foreign_store_and_other_manifests_are_refused(tmp_path: Path) -> None:
    store = write(tmp_path, "wordpiece", ["hello"])
    with pytest.raises(ConfigError, match="belongs to the index it, not to another"):
        TokenStore(store, "another")
    manifest = store / "tokens.json"
    whole = json.loads(manifest.read_text())
    for text, message in [
        ("{", "JSONDecodeError"),
        ("{}", "KeyError"),
        ("[]", "AttributeError|TypeError"),
        (json.dumps(whole | {"parts": []}), "its values have changed"),
        # Every document would have the tokens of the previous one.
        (manifest.read_text().replace('"first": 0', '"first": 1'), "its values have changed"),
        (json.dumps(sealed(whole | {"format": 1})), "is of format 1"),
    ]:
        manifest.write_text(text)
        with pytest.raises(ConfigError, match=rf"tokens.json: .*{message}"):
            TokenStore(store, "it")


def test_another_tokenizer_is_distinguished_from_the_same_with_other_cuts(tmp_path: Path) -> None:
    store = write(tmp_path, "wordpiece", ["hello"])
    tokenizer = tiny_tokenizers.wordpiece()
    tokenizer.enable_truncation(7)
    tokenizer.enable_padding()
    same_tokens = TextTokenizer(TokenizerFiles(tokenizer.to_str()))
    assert key_of(same_tokens) == key_of(TOKENIZERS["wordpiece"])
    assert TokenStore(store, "it").why_not(same_tokens, 9) == ""
    assert "from another tokenizer" in TokenStore(store, "it").why_not(TOKENIZERS["metaspace"], 9)
    manifest = json.loads((store / "tokens.json").read_text())
    (store / "tokens.json").write_text(json.dumps(sealed(manifest | {"tokenizers": "0.0.1"})))
    assert "stored by tokenizers 0.0.1" in TokenStore(store, "it").why_not(same_tokens, 9)
