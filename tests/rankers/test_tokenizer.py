import json
import threading
import unicodedata

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farrank_rankers import tokenizer as module
from farrank_rankers.pieces import cut_pattern, find_cut, next_piece
from farrank_rankers.tokenizer import TextTokenizer

KINDS = ("wordpiece", "byte_level", "byte_pairs", "metaspace", "answering")
NO_LIMIT = 10**9

# Pieces that have broken offsets or word boundaries before.
WORDS = ["hello", "world", "naïve", "cafe\u0301", "😀", "👩\u200d👩\u200d👧", "漢字", "𝒳", "ﬁ", "İ", "ß", "1"]
SPACES = [" ", " ", "  ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\u200b"]
ODDITIES = ["\x00", "\x0b", "\x1c", "\x85", "\u0301", ".", "'s", "▁"]
TEXTS = st.lists(st.sampled_from(WORDS + SPACES + ODDITIES), max_size=40).map("".join)


@pytest.mark.parametrize("kind", KINDS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=TEXTS, size=st.integers(1, 12), limit=st.integers(1, 40))
def test_pieces_give_the_tokens_of_the_whole(
    text_tokenizers: dict[str, TextTokenizer],
    kind: str,
    text: str,
    size: int,
    limit: int,
) -> None:
    tokenizer = text_tokenizers[kind]
    whole = tokenizer.tokenizer.encode(text, add_special_tokens=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE_CHARACTERS", size)
        counted = tokenizer.read(text, limit, count_tokens=True)
        read = tokenizer.read(text, limit)
        assert tokenizer.count(text) == len(whole.ids)
    assert counted.total_tokens == len(whole.ids)
    assert counted.tokens_cut == max(0, len(whole.ids) - limit)
    was_cut = len(whole.ids) > limit
    assert read.total_tokens == (None if was_cut else len(whole.ids))
    assert read.tokens_cut == (None if was_cut else 0)
    for name in ("ids", "starts", "ends", "characters_cut"):
        assert np.array_equal(getattr(read, name), getattr(counted, name))
    assert was_cut or read.characters_cut == 0
    if was_cut:
        assert len(text) - read.characters_cut == whole.offsets[limit][0]
    assert read.ids.tolist() == whole.ids[:limit]
    assert list(zip(read.starts.tolist(), read.ends.tolist(), strict=True)) == whole.offsets[:limit]
    assert read.ids.dtype == read.starts.dtype == read.ends.dtype == np.int32


@given(text=st.text(alphabet="ab \n\t.漢", max_size=60), size=st.integers(1, 9), most=st.integers(1, 9))
def test_pieces_begin_and_end_at_places_safe_to_cut(text: str, size: int, most: int) -> None:
    pattern = cut_pattern({"pre_tokenizer": {"type": "BertPreTokenizer"}})
    start = 0
    while start < len(text):
        piece = next_piece(text, start, pattern, size, most)
        assert piece.start == start < piece.end <= start + size + most
        assert piece.end == len(text) or not piece.is_whole or not text[piece.end].strip()
        assert piece.end == len(text) or not piece.is_whole or text[piece.end - 1].strip()
        start = piece.end
        if not piece.is_whole:
            assert find_cut(text, piece.start + 1, piece.end + most, pattern) is None
            found = find_cut(text, piece.end + most, len(text), pattern)
            start = len(text) if found is None else found


@pytest.mark.parametrize(
    ("pre_tokenizer", "cuts"),
    [
        ('{"type": "BertPreTokenizer"}', True),
        ('{"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, {"type": "Metaspace"}]}', True),
        ('{"type": "ByteLevel", "use_regex": true}', True),
        ('{"type": "ByteLevel", "use_regex": false}', False),
        ('{"type": "Metaspace", "split": false}', False),
        ('{"type": "Split"}', False),
        ("null", False),
    ],
)
def test_only_known_tokenizers_are_cut(pre_tokenizer: str, cuts: bool) -> None:
    assert (cut_pattern({"pre_tokenizer": json.loads(pre_tokenizer)}) is not None) is cuts


@pytest.mark.parametrize("kind", KINDS)
def test_offsets_point_at_the_words(text_tokenizers: dict[str, TextTokenizer], kind: str) -> None:
    words = ["hello", "😀", "cafe\u0301", "漢", "search", "\U0001f1e9\U0001f1ea", "straße", "query"]
    text = "  " + "  ".join(words)
    read = text_tokenizers[kind].read(text, NO_LIMIT)
    at = 0
    for word in words:
        at = text.index(word, at)
        inside = [i for i in range(len(read)) if read.starts[i] < at + len(word) and read.ends[i] > at]
        assert inside, word
        spans = "".join(text[read.starts[i] : read.ends[i]] for i in (inside[0], inside[-1])).strip()
        assert set(spans) <= set(word + " ")
        assert at - 2 <= read.starts[inside[0]] <= at
        end = at + len(word)
        assert end - (unicodedata.combining(word[-1]) > 0) <= read.ends[inside[-1]] <= end


def test_controls_and_accents_are_dropped_but_counted(text_tokenizers: dict[str, TextTokenizer]) -> None:
    text = "\x00a\x07\x00 he\x00l\u0301lo 😀"
    read = text_tokenizers["wordpiece"].read(text, NO_LIMIT)
    hello = text_tokenizers["wordpiece"].ids("hello")
    assert read.ids[1 : 1 + len(hello)].tolist() == hello.tolist()
    assert text[read.starts[0] : read.ends[0]] == "a"
    assert text[read.starts[1] : read.ends[len(hello)]] == "he\x00l\u0301lo"
    assert text[read.starts[-1] : read.ends[-1]] == "😀"


def test_an_empty_text_has_no_token(text_tokenizers: dict[str, TextTokenizer]) -> None:
    for text in ("", " \n\t ", "\x00"):
        read = text_tokenizers["wordpiece"].read(text, NO_LIMIT)
        assert (len(read), read.total_tokens, read.tokens_cut) == (0, 0, 0)
        assert read.starts.shape == read.ends.shape == (0,)


def test_reading_pauses_between_pieces(text_tokenizers: dict[str, TextTokenizer]) -> None:
    text = "hello world " * 10_000
    pauses = list(text_tokenizers["wordpiece"].steps(text, 5, count_tokens=True))
    assert len(pauses) > 2
    assert pauses == sorted(set(pauses))
    assert pauses[-1] < len(text)


def test_short_texts_are_read_without_a_pause(text_tokenizers: dict[str, TextTokenizer]) -> None:
    assert not list(text_tokenizers["wordpiece"].steps("hello", 5))


def test_a_long_text_is_counted_exactly(text_tokenizers: dict[str, TextTokenizer]) -> None:
    text = "".join(f"word{index} 漢字 naïve\n" for index in range(6000))
    tokenizer = text_tokenizers["wordpiece"]
    read = tokenizer.read(text, 50_000, count_tokens=True)
    whole = tokenizer.tokenizer.encode(text, add_special_tokens=False)
    assert len(text) > 2 * module.PIECE_CHARACTERS
    assert read.total_tokens == len(whole)
    assert read.ids.tolist() == whole.ids[:50_000]
    assert read.ends.tolist() == [end for _, end in whole.offsets[:50_000]]


def test_lone_surrogates_are_refused(text_tokenizers: dict[str, TextTokenizer]) -> None:
    with pytest.raises(ValueError, match=r"text is not valid Unicode: lone surrogate U\+D83D"):
        text_tokenizers["wordpiece"].read("a \ud83d b", 5)


def test_threads_share_a_tokenizer(text_tokenizers: dict[str, TextTokenizer]) -> None:
    tokenizer = text_tokenizers["wordpiece"]
    texts = [f"hello query {index} " * 200 for index in range(8)]
    expected = [tokenizer.read(text, NO_LIMIT).ids.tolist() for text in texts]
    found: dict[int, list[list[int]]] = {}

    def work(index: int) -> None:
        found[index] = [tokenizer.read(texts[index], NO_LIMIT).ids.tolist() for _ in range(5)]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found[index] == [expected[index]] * 5 for index in range(len(texts)))


def test_text_beyond_the_cut_is_not_tokenized(text_tokenizers: dict[str, TextTokenizer]) -> None:
    """No token of the rest is read: even an unreadable one is not noticed."""
    tokenizer = text_tokenizers["wordpiece"]
    text = "hello world " * 2_000 + "\ud83d " + "hello " * 2_000
    tokens = len(tokenizer.ids("hello world "))
    read = tokenizer.read(text, 100)
    assert (len(read), read.tokens_cut) == (100, None)
    assert read.characters_cut == len(text) - len("hello world " * (100 // tokens))
    with pytest.raises(ValueError, match="lone surrogate"):
        tokenizer.read(text, 100, count_tokens=True)


@pytest.mark.parametrize("behind", ["", "   \n", " \x00" * 40_000])
def test_a_text_that_just_fits_is_not_cut(text_tokenizers: dict[str, TextTokenizer], behind: str) -> None:
    """The rest is searched for one more token before the text counts as cut."""
    tokenizer = text_tokenizers["wordpiece"]
    text = "hello world" + behind
    tokens = len(tokenizer.ids("hello world"))
    read = tokenizer.read(text, tokens)
    assert (len(read), read.characters_cut, read.tokens_cut) == (tokens, 0, 0)
    cut = tokenizer.read(text + " hello", tokens)
    assert (len(cut), cut.characters_cut, cut.tokens_cut) == (tokens, len("hello"), None)


def test_tokenizer_json_is_parsed_once(
    text_tokenizers: dict[str, TextTokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parsing a vocabulary of 250,000 tokens takes 0.3 s."""
    files, parse = text_tokenizers["wordpiece"].files, json.loads
    parsed = []

    def noted(text: str) -> object:
        parsed.append(text)
        return parse(text)

    monkeypatch.setattr(json, "loads", noted)
    TextTokenizer(files).pad_id(0)
    assert parsed.count(files.tokenizer_json) == 1
