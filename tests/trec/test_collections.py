"""Texts of the wanted documents, out of collections in the shapes they come in."""

import gzip
import json
from pathlib import Path

import pytest

from farrank_trec import missing_documents, read_collection
from farrank_trec.errors import InputError


def test_ids_and_texts_go_by_several_names(tmp_path: Path) -> None:
    shapes: list[dict[str, object]] = [
        {"id": "a", "text": "one\u2028line"},
        {"docid": "b", "title": "Title", "text": "two"},
        {"pid": "c", "pos": 0, "title": None, "text": ""},
    ]
    plain, packed = tmp_path / "1.jsonl", tmp_path / "2.jsonl.gz"
    plain.write_text(json.dumps(shapes[0], ensure_ascii=False) + "\n", "utf-8")
    packed.write_bytes(gzip.compress("\n".join(map(json.dumps, shapes[1:])).encode()))

    texts = read_collection([plain, packed], ["a", "b", "c"])

    assert texts == {"a": "one\u2028line", "b": "Title\n\ntwo", "c": ""}


def test_only_what_is_wanted_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('{"id": "a", "text": "x"}\n{"id": "b"}\n{"id": "b"}\n')

    assert read_collection([path], {"a"}) == {"a": "x"}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not JSON: "),
        ('{"text": "x"}', "'id' or 'docid' or 'doc_id' or 'pid' or '_id' is missing (the object has 'text')"),
        ('{"id": "b", "text": 3}', "'text' must be a string, not int"),
        ('{"id": "b", "text": "\\ud800"}', "'text' holds half of a surrogate pair"),
        ('{"id": "a", "text": "y"}', "document 'a' stands twice"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(f'{{"id": "a", "text": "x"}}\n{line}\n')

    with pytest.raises(InputError) as failure:
        read_collection([path], {"a", "b"})

    assert str(failure.value).startswith(f"{path}:2: {says}")


def test_missing_documents_are_counted_and_the_first_named() -> None:
    wanted = [f"d{number}" for number in range(8)]

    assert missing_documents(dict.fromkeys(wanted, ""), wanted) == ""
    assert (
        missing_documents({"d0": ""}, wanted)
        == "7 of 8 candidate documents are not in the collection: d1, d2, d3, d4, d5, …"
    )
