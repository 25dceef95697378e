import json
from pathlib import Path

import pytest

from farrank_exporters.texts import (
    COMPARED_WORDS,
    DOCUMENTS,
    MIN_TEXTS,
    QUERIES,
    QUERY_WORDS,
    divide,
    enough,
    python_documentation,
    read_texts,
)
from farrank_rankers.errors import ExportError


def test_compared_documents_have_equal_length_and_calibrating_ones_all_lengths() -> None:
    measured, calibration = divide(python_documentation(), "it")
    assert [len(text.split()) for text in measured.documents] == [COMPARED_WORDS] * DOCUMENTS
    assert all(any(text in whole for whole in python_documentation()) for text in measured.documents)
    words = sorted(len(text.split()) for text in calibration.documents)
    assert len(words) > 30
    assert words[0] < 50
    assert words[-1] > 5000


@pytest.mark.parametrize("count", [MIN_TEXTS - 1, MIN_TEXTS])
def test_what_is_enough_can_be_divided(count: int) -> None:
    texts = [f"text number {number} of several different and short ones" for number in range(count)]
    assert enough([*texts, texts[0], "too short"]) == (count == MIN_TEXTS)


def test_queries_are_words_of_the_documents() -> None:
    for texts in divide(python_documentation(), "it"):
        assert len(set(texts.queries)) == QUERIES
        for query in texts.queries:
            assert len(query.split()) == QUERY_WORDS
            assert sum(query in " ".join(document.split()) for document in texts.documents) >= 1


def test_few_texts_are_all_used() -> None:
    texts = [f"text number {number} has " + "some more words " * number for number in range(2, 8)]
    measured, calibration = divide([*texts, texts[0], "too short", ""], "it")
    assert set(measured.documents) | set(calibration.documents) == set(texts)
    assert len(measured.documents) == len(measured.queries) == 3


def test_too_few_texts_are_refused() -> None:
    texts = ["one and the same text of more than eight words"] * 9 + ["short"]
    with pytest.raises(
        ExportError, match=r"t\.jsonl has 1 different texts of at least 8 words; .* at least 4"
    ):
        divide(texts, "t.jsonl")


def test_texts_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    lines = [{"text": "first 😀"}, {"id": 3, "text": "second", "title": "t"}]
    file.write_text("\n\n".join(map(json.dumps, lines)) + '\n{"text": "no line\u2028end"}\n')
    assert read_texts(file) == ["first 😀", "second", "no line\u2028end"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "not JSON at character 2"),
        ("[]", "must be a JSON object, not list"),
        ('{"body": "a"}', r"'text' is missing \(the object has 'body'\)"),
        ('{"text": 3}', "'text' must be a string, not int"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text('{"text": "fine"}\n\n' + line + "\n")
    with pytest.raises(ExportError, match=complaint) as raised:
        read_texts(file)
    assert f"{file}:3: " in str(raised.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"t\.jsonl: No such file"):
        read_texts(tmp_path / "t.jsonl")
