"""Queries, from TSV and JSON lines."""

from pathlib import Path

import pytest

from farrank_trec import read_queries
from farrank_trec.errors import InputError


def test_tsv_keeps_the_order_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "topics.tsv"
    path.write_text("2\twho is  robert gray\n1\tdo goldfish grow\r\n")

    assert list(read_queries(path).items()) == [("2", "who is robert gray"), ("1", "do goldfish grow")]


def test_json_lines_have_several_fields_to_choose_from(tmp_path: Path) -> None:
    path = tmp_path / "queries.jsonl"
    path.write_text('{"qid": "301", "title": "Crime", "description": "Identify\\norganizations"}\n')

    assert read_queries(path) == {"301": "Crime"}
    assert read_queries(path, "description") == {"301": "Identify organizations"}
    with pytest.raises(
        InputError, match=r"jsonl:1: 'narrative' is missing \(the object has 'qid', 'title', 'description'\)"
    ):
        read_queries(path, "narrative")


@pytest.mark.parametrize(
    ("name", "line", "says"),
    [
        ("q.tsv", "2 no tab", "1 columns; queries have 2, separated by a tab: query_id text"),
        ("q.tsv", "2\ta\tb", "3 columns; queries have 2, separated by a tab: query_id text"),
        ("q.tsv", "1\tagain", "query_id '1' appears twice"),
        ("q.tsv", "a b\ttext", "query_id 'a b' holds white space or control characters"),
        ("q.tsv", "2\t ", "the text of query '2' is empty"),
        ("q.jsonl", '["2"]', "must be a JSON object, not list"),
        ("q.jsonl", '{"qid": 2, "text": "t"}', "'qid' must be a string, not int"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, name: str, line: str, says: str) -> None:
    first = '{"qid": "1", "text": "t"}' if name.endswith("jsonl") else "1\tt"
    (tmp_path / name).write_text(f"{first}\n{line}\n")

    with pytest.raises(InputError) as failure:
        read_queries(tmp_path / name)

    assert str(failure.value) == f"{tmp_path / name}:2: {says}"


def test_a_field_of_a_tsv_is_refused(tmp_path: Path) -> None:
    (tmp_path / "q.tsv").write_text("1\tt\n")

    with pytest.raises(InputError, match=r"field 'title' needs a \.jsonl file"):
        read_queries(tmp_path / "q.tsv", "title")


def test_a_byte_order_mark_belongs_to_no_query(tmp_path: Path) -> None:
    path = tmp_path / "queries.tsv"
    path.write_bytes("q1\tfirst\nq2\tsecond\n".encode("utf-8-sig"))
    assert read_queries(path) == {"q1": "first", "q2": "second"}
    path.write_bytes(b"\xef\xbb\xbf\nq1\tfirst\n")
    assert read_queries(path) == {"q1": "first"}
