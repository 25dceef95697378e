"""Collections are read as they are meant, and every bad line is named."""

import gzip
import io
import json
import sys
from pathlib import Path

import pytest

from farrank_server.indexing.collection import CollectionError, Document, read_jsonl

GOOD = '{"id": "a", "text": "first"}\n'


def test_titles_go_in_front_and_other_keys_are_ignored(tmp_path: Path) -> None:
    lines = [
        {"id": "plain", "text": "text"},
        {"id": "titled", "title": "Title", "text": "text", "url": "x", "n": [1]},
        {"id": "null-title", "title": None, "text": "text"},
        {"id": "empty", "title": "", "text": ""},
        {"id": "odd", "text": "\U0001f600 \x00 \u2028 \r\n"},
    ]
    path = tmp_path / "docs.jsonl"
    path.write_text("\n\n".join(json.dumps(line) for line in lines))
    assert list(read_jsonl([path])) == [
        Document("plain", "text"),
        Document("titled", "Title\n\ntext"),
        Document("null-title", "text"),
        Document("empty", ""),
        Document("odd", "\U0001f600 \x00 \u2028 \r\n"),
    ]


def test_unescaped_line_separators_of_unicode_end_no_line(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_bytes('{"id": "é", "text": "one\u2028two\x85three"}\r\n'.encode())
    assert list(read_jsonl([path])) == [Document("é", "one\u2028two\x85three")]


def test_gzip_several_files_and_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed, plain = tmp_path / "1.jsonl.gz", tmp_path / "2.jsonl"
    packed.write_bytes(gzip.compress(GOOD.encode()))
    plain.write_text('{"id": "b", "text": "second"}')
    stdin = io.TextIOWrapper(io.BytesIO(b'{"id": "c", "text": "third"}\n'))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert [document.doc_id for document in read_jsonl([packed, str(plain), "-"])] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"not json", "the line is not JSON"),
        (b'{"id": "x", "text": "cut', "the line is not JSON"),
        (b"[" * 100_000, "the line is not JSON"),
        (b'["x", "text"]', "the line is not a JSON object"),
        (b'"x"', "the line is not a JSON object"),
        (b'{"text": "t"}', "'id' is missing"),
        (b'{"id": "", "text": "t"}', "'id' is empty"),
        (b'{"id": 7, "text": "t"}', "'id' is not a string"),
        (b'{"id": "x\\ty", "text": "t"}', "'id' 'x\\ty' holds white space"),
        (b'{"id": "x\\n", "text": "t"}', "'id' 'x\\n' holds white space"),
        (b'{"id": " x", "text": "t"}', "'id' ' x' holds white space"),
        (b'{"id": "x\\u00a0y", "text": "t"}', "holds white space"),
        (b'{"id": "x\\u0000", "text": "t"}', "control characters"),
        (b'{"id": "x"}', "'text' is missing"),
        (b'{"id": "x", "text": null}', "'text' is not a string"),
        (b'{"id": "x", "text": ["t"]}', "'text' is not a string"),
        (b'{"id": "x", "title": 3, "text": "t"}', "'title' is not a string"),
        (b'{"id": "x", "text": "\\ud83d"}', "'text' holds half of a surrogate pair"),
        (b'{"id": "x", "text": "\xff"}', "the line is not UTF-8 (byte 22)"),
        (b'{"id": "a", "text": "again"}', "the id 'a' stands already in "),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, problem: str) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_bytes(GOOD.encode() + b"\n" + line + b"\n")
    with pytest.raises(CollectionError) as caught:
        list(read_jsonl([path]))
    assert str(caught.value).startswith(f"{path}, line 3: ")
    assert problem in str(caught.value)


def test_a_duplicate_names_both_lines_across_files(tmp_path: Path) -> None:
    first, second = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    first.write_text("\n" + GOOD)
    second.write_text(GOOD)
    with pytest.raises(CollectionError) as caught:
        list(read_jsonl([first, second]))
    assert str(caught.value) == f"{second}, line 1: the id 'a' stands already in {first}, line 2"


@pytest.mark.parametrize("damage", ["cut", "not gzip"])
def test_a_damaged_gzip_file_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "docs.jsonl.gz"
    path.write_bytes(gzip.compress(GOOD.encode())[:-9] if damage == "cut" else GOOD.encode())
    with pytest.raises(CollectionError, match=r"docs\.jsonl\.gz: the gzip file is damaged"):
        [document.doc_id for document in read_jsonl([path])]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        list(read_jsonl([tmp_path / "absent.jsonl"]))
