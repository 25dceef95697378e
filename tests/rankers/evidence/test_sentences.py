"""Bounds of sentences in ten languages, in code, lists and wrapped lines."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farrank_rankers.evidence.sentences import LONGEST, sentences


def cut(text: str) -> list[str]:
    return [text[start:end] for start, end in sentences(text)]


LANGUAGES = {
    "en": [
        "Dr. Smith went to Washington, D.C. on Jan. 5th.",
        "He met Mr. Jones of Acme Inc. Ltd. at 3 p.m. and left.",
        "Version 3.14 costs $2.50, i.e. little, e.g. for J. R. R. Tolkien.",
        '"Really?"',
        "See Fig. 3 and pp. 5 ff.",
    ],
    "de": [
        "Das ist z. B. ein Satz, bzw. zwei, d. h. mehrere.",
        "Am 3. Oktober kam Dr. Müller nach Ca. 20 Leuten.",
        "Er sagte: „Nein!“",
        "Kostet das 3,5 Mio. Euro?",
    ],
    "fr": [
        "M. Dupont a vu Mme. Curie, p. ex. hier.",
        "Voilà !",
        "Est-ce vrai ?",
        "Il est né en 1867 à Paris.",
    ],
    "es": [
        "El Sr. García vive en EE. UU. desde 1990.",
        "¿Cómo está Ud.?",
        "¡Muy bien!",
        "La Dra. López llegó.",
    ],
    "ru": [
        "А. С. Пушкин родился в 1799 г. в Москве.",
        "Это стоит 5 тыс. руб. за штуку.",
        "Правда ли это?",
        "Да!",
    ],
    "zh": ["他来了。", "“你好！”", "她说价格是3.5元。", "真的吗？"],
    "ja": ["彼は来た。", "「本当ですか？」", "と彼女は言った。", "価格は3.5円です。"],
    "hi": ["वह आया।", "क्या यह सच है?", "डॉ. शर्मा यहाँ हैं।"],
    "ar": ["جاء الرجل إلى المدينة.", "هل هذا صحيح؟", "نعم!", "قال د. أحمد إنه هنا."],
    "th": [
        "กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย",
        "ประเทศไทยมีประชากรประมาณ 66 ล้านคน",
        "มีคนอาศัยอยู่มากที่สุดในภาคตะวันออกเฉียงเหนือ",
    ],
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_sentences_of_ten_languages(language: str) -> None:
    expected = LANGUAGES[language]
    separator = "" if language in ("zh", "ja") else " "

    assert cut(separator.join(expected)) == expected


def test_a_capital_after_a_common_word_begins_a_sentence() -> None:
    assert cut("He said no. Then he left in 1990. It rained.") == [
        "He said no.",
        "Then he left in 1990.",
        "It rained.",
    ]


def test_wrapped_prose_is_joined_and_keeps_its_characters() -> None:
    text = (
        "Prose that was wrapped by an editor at about sixty columns\n"
        "and goes on here. A second sentence begins in the middle of\n"
        "a line, and ends.\n\nAnother paragraph"
    )
    assert cut(text) == [
        "Prose that was wrapped by an editor at about sixty columns\nand goes on here.",
        "A second sentence begins in the middle of\na line, and ends.",
        "Another paragraph",
    ]


def test_ragged_prose_is_joined_and_code_beside_it_is_not() -> None:
    text = (
        " |      Parse the line into a command name and a string containing\n"
        " |      the arguments.  Returns a tuple of three values.\n"
        " |      raise an_error from another\n"
        " |      import numbers as n\n"
        " |      return found, the rest, and all\n"
        " |      Nothing else\n"
    )
    assert cut(text) == [
        "Parse the line into a command name and a string containing\n |      the arguments.",
        "Returns a tuple of three values.",
        "raise an_error from another",
        "import numbers as n",
        "return found, the rest, and all",
        "Nothing else",
    ]


def test_items_of_lists_are_apart() -> None:
    text = (
        "Take these:\n- the first\n- the second, which is wrapped at about sixty columns, and\n"
        "  continues here. It has two sentences.\n1. One\n2) Two\n(c) Three\n• vier\n| a | b |\n"
    )
    assert cut(text) == [
        "Take these:",
        "- the first",
        "- the second, which is wrapped at about sixty columns, and\n  continues here.",
        "It has two sentences.",
        "1. One",
        "2) Two",
        "(c) Three",
        "• vier",
        "a | b |",
    ]


def test_each_line_of_code_is_apart() -> None:
    text = (
        "Open it:\n\n```python\nwith open(path) as file:  # a comment. Of two sentences\n"
        "    data = file.read()\n```\n\n"
        "    for (int i = 0; i < the_number_of_all_elements_of_it; i++) {\n        sum += x.y;\n    }\n"
        ">>> f(1)\n>>> f(2)"
    )
    assert cut(text) == [
        "Open it:",
        "with open(path) as file:  # a comment.",
        "Of two sentences",
        "data = file.read()",
        "for (int i = 0; i < the_number_of_all_elements_of_it; i++) {",
        "sum += x.y;",
        ">>> f(1)",
        ">>> f(2)",
    ]


def test_a_margin_belongs_to_no_word() -> None:
    text = (
        " |  read(size=-1)\n |      Read at most size characters from the stream, and return\n"
        " |      them. Negative means all.\n |\n # Comments that are wrapped have a margin, too, so that\n"
        " # they are joined."
    )
    assert cut(text) == [
        "read(size=-1)",
        "Read at most size characters from the stream, and return\n |      them.",
        "Negative means all.",
        "Comments that are wrapped have a margin, too, so that\n # they are joined.",
    ]


def test_a_text_without_bounds_is_divided_at_spaces() -> None:
    text = "word " * 1000
    found = sentences(text)

    assert max(end - start for start, end in found) <= LONGEST
    assert "".join(cut(text)).replace(" ", "") == "word" * 1000
    assert all(each.startswith("word") and each.endswith("word") for each in cut(text))


def test_characters_beyond_16_bits_count_once() -> None:
    assert cut("A 😀😀 river. “😀 Bread.” 𝔉lour is.") == ["A 😀😀 river.", "“😀 Bread.”", "𝔉lour is."]


def test_nothing_but_marks_is_no_sentence() -> None:
    assert cut("") == cut("---\n***\n```\n. . .") == []


TEXTS = st.lists(
    st.sampled_from(
        (
            "a",
            "B.",
            "word",
            "3.",
            "Dr.",
            "“",
            "。",
            "\n",
            "\r\n",
            "\u2028",
            "  ",
            "- ",
            "|",
            "ไทย",
            "😀",
            "\x00",
            "{",
        )
    ),
    max_size=60,
).map("".join)


@given(TEXTS | st.text())
def test_every_letter_is_in_one_sentence(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    found = sentences(text)

    assert all(0 <= start < end <= len(text) for start, end in found)
    assert all(one[1] <= other[0] for one, other in pairwise(found))
    assert all(text[start:end] == text[start:end].strip() for start, end in found)
    covered = {place for start, end in found for place in range(start, end)}
    assert all(place in covered for place, each in enumerate(text) if each.isalnum())
