"""Collections in all their formats, with every invalid line reported."""

import gzip
import io
import json
import sys
from pathlib import Path

import pytest

from farrank_trec import CollectionDocument, missing_documents, read_collection, read_documents
from farrank_trec.errors import InputError

GOOD = '{"id": "a", "text": "first"}\n'


def texts_of(documents: list[CollectionDocument]) -> dict[str, str]:
    return {each.doc_id: each.text for each in documents}


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
    assert list(read_documents([path])) == [
        CollectionDocument(f"{path}:1", "plain", "text"),
        CollectionDocument(f"{path}:3", "titled", "Title\n\ntext"),
        CollectionDocument(f"{path}:5", "null-title", "text"),
        CollectionDocument(f"{path}:7", "empty", ""),
        CollectionDocument(f"{path}:9", "odd", "\U0001f600 \x00 \u2028 \r\n"),
    ]


@pytest.mark.parametrize("name", ["docs.jsonl", "docs.jsonl.gz"])
def test_documents_tell_where_their_lines_stand(tmp_path: Path, name: str) -> None:
    lines = [f'{{"id": "{each}", "text": "é"}}'.encode() for each in "abc"]
    content = b"\r\n \n".join(lines)
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    for document, line in zip(read_documents([path], wanted="bc"), lines[1:], strict=True):
        assert (document.source, document.line) == (path, line)
        assert document.offset == content.index(line)


def test_ids_and_texts_go_by_several_names(tmp_path: Path) -> None:
    shapes: list[dict[str, object]] = [
        {"id": "a", "text": "one\u2028line"},
        {"docid": "b", "title": "Title", "contents": "two"},
        {"pid": "c", "pos": 0, "title": None, "body": ""},
    ]
    plain, packed = tmp_path / "1.jsonl", tmp_path / "2.jsonl.gz"
    plain.write_text(json.dumps(shapes[0], ensure_ascii=False) + "\n", "utf-8")
    packed.write_bytes(gzip.compress("\n".join(map(json.dumps, shapes[1:])).encode()))

    texts = read_collection([plain, packed], ["a", "b", "c"])

    assert texts == {"a": "one\u2028line", "b": "Title\n\ntwo", "c": ""}


def test_fields_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_text('{"id": "1", "url": "u", "headline": "H", "story": "s", "text": "t"}\n')
    named = {"id": "url", "title": "headline", "text": "story"}
    assert texts_of(list(read_documents([path], fields=named))) == {"u": "H\n\ns"}
    with pytest.raises(InputError, match=r"docs\.jsonl:1: 'body' is missing \(the object has 'id', 'url', "):
        list(read_documents([path], fields={"text": "body"}))


def test_unescaped_line_separators_of_unicode_end_no_line(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_bytes('{"id": "é", "text": "one\u2028two\x85three"}\r\n'.encode())
    assert texts_of(list(read_documents([path]))) == {"é": "one\u2028two\x85three"}


def test_gzip_several_files_and_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed, plain = tmp_path / "1.jsonl.gz", tmp_path / "2.jsonl"
    packed.write_bytes(gzip.compress(GOOD.encode()))
    plain.write_text('{"id": "b", "text": "second"}')
    stdin = io.TextIOWrapper(io.BytesIO(b'{"id": "c", "text": "third"}\n'))
    monkeypatch.setattr(sys, "stdin", stdin)
    found = list(read_documents([packed, str(plain), "-"]))
    assert [each.doc_id for each in found] == ["a", "b", "c"]
    assert found[2].where == "standard input:1"


def test_only_what_is_wanted_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('{"id": "a", "text": "x"}\n{"id": "b"}\n{"id": "b"}\n')

    assert read_collection([path], {"a"}) == {"a": "x"}


BAD_LINES = [
    (b"not json", "not JSON at character 1: Expecting value"),
    (b'{"id": "x", "text": "cut', "not JSON at character 21: Unterminated string starting at"),
    (b"[" * 100_000, "not JSON: "),
    (b'["x", "text"]', "must be a JSON object, not list"),
    (b'"x"', "must be a JSON object, not str"),
    (b'{"text": "t"}', "'id' or 'docid' or 'doc_id' or 'pid' or '_id' is missing (the object has 'text')"),
    (b"{}", "'id' or 'docid' or 'doc_id' or 'pid' or '_id' is missing (the object is empty)"),
    (b'{"id": "", "text": "t"}', "the id is empty"),
    (b'{"id": 7, "text": "t"}', "'id' must be a string, not int"),
    (b'{"id": "x\\ty", "text": "t"}', "the id 'x\\ty' holds white space"),
    (b'{"id": "x\\n", "text": "t"}', "the id 'x\\n' holds white space"),
    (b'{"id": " x", "text": "t"}', "the id ' x' holds white space"),
    (b'{"id": "x\\u00a0y", "text": "t"}', "the id 'x\\xa0y' holds white space or control characters"),
    (b'{"id": "x\\u0000", "text": "t"}', "the id 'x\\x00' holds white space or control characters"),
    (b'{"id": "x"}', "'text' or 'contents' or 'body' is missing (the object has 'id')"),
    (b'{"id": "x", "text": null}', "'text' must be a string, not NoneType"),
    (b'{"id": "x", "text": ["t"]}', "'text' must be a string, not list"),
    (b'{"id": "x", "title": 3, "text": "t"}', "'title' must be a string, not int"),
    (b'{"id": "x", "text": "\\ud83d"}', "'text' holds half of a surrogate pair"),
    (b'{"id": "x", "text": "\xff"}', "not UTF-8 (byte 22 of the line)"),
    (b'{"id": "a", "text": "again"}', "the id 'a' is already used at "),
]


@pytest.mark.parametrize(("line", "problem"), BAD_LINES)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, problem: str) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_bytes(GOOD.encode() + b"\n" + line + b"\n")
    with pytest.raises(InputError) as caught:
        list(read_documents([path]))
    assert str(caught.value).startswith(f"{path}:3: {problem}")


def test_bad_lines_can_be_skipped_and_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_bytes(GOOD.encode() + b"\n".join(line for line, _ in BAD_LINES) + b'\n{"id": "z", "text": ""}')
    told: list[InputError] = []
    found = list(read_documents([path], on_bad=told.append))
    assert [each.doc_id for each in found] == ["a", "z"]
    assert [str(error).partition(": ")[0] for error in told] == [
        f"{path}:{number}" for number in range(2, 2 + len(BAD_LINES))
    ]


def test_a_duplicate_names_both_lines_across_files(tmp_path: Path) -> None:
    first, second = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    first.write_text("\n" + GOOD)
    second.write_text(GOOD)
    with pytest.raises(InputError) as caught:
        list(read_documents([first, second]))
    assert str(caught.value) == f"{second}:1: the id 'a' is already used at {first}:2"


@pytest.mark.parametrize("damage", ["cut", "not gzip"])
def test_a_damaged_gzip_file_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "docs.jsonl.gz"
    path.write_bytes(gzip.compress(GOOD.encode())[:-9] if damage == "cut" else GOOD.encode())
    # A damaged file is not an invalid line: the rest of the file cannot be read.
    with pytest.raises(InputError, match=r"docs\.jsonl\.gz:[12]: the gzip file is damaged"):
        list(read_documents([path], on_bad=lambda error: None))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.jsonl: No such file or directory"):
        list(read_documents([tmp_path / "absent.jsonl"]))


def test_missing_documents_are_counted_and_the_first_named() -> None:
    wanted = [f"d{number}" for number in range(8)]

    assert missing_documents(dict.fromkeys(wanted, ""), wanted) == ""
    assert (
        missing_documents({"d0": ""}, wanted)
        == "7 of 8 candidate documents are not in the collection: d1, d2, d3, d4, d5, …"
    )
