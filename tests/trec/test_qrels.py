"""Judgements, from files and from the names of documents."""

from pathlib import Path

import pytest

from farrank_trec import qrels_by_id_prefix, rank, read_qrels
from farrank_trec.errors import InputError


def test_grades_by_query_and_document(tmp_path: Path) -> None:
    path = tmp_path / "qrels"
    path.write_text("q1 0 a 2\nq1 Q0 b 0\nq2\t0\ta\t-1\nq1 0 a 2\n")

    assert read_qrels(path) == {"q1": {"a": 2, "b": 0}, "q2": {"a": -1}}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("q 0 d", "3 columns; qrels have 4: query_id iteration doc_id grade"),
        ("q 0 d 1.5", "grade '1.5' must be a whole number of at most 9 digits"),
        ("q 0 d 1_0", "grade '1_0' must be a whole number of at most 9 digits"),
        ("q 0 a 2", "document 'a' has grade 2 for query 'q', but 1 before"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "qrels"
    path.write_text(f"q 0 a 1\n{line}\n")

    with pytest.raises(InputError) as failure:
        read_qrels(path)

    assert str(failure.value) == f"{path}:2: {says}"


def test_no_judgements_are_refused(tmp_path: Path) -> None:
    (tmp_path / "qrels").touch()

    with pytest.raises(InputError, match="the qrels are empty"):
        read_qrels(tmp_path / "qrels")


def test_names_that_begin_with_the_query_are_relevant() -> None:
    run = {"12": rank("12", [("12_7", 1.0), ("123_7", 2.0), ("7_12", 3.0)]), "9": rank("9", [("8_1", 1.0)])}

    assert qrels_by_id_prefix(run) == {"12": {"12_7": 1, "123_7": 0, "7_12": 0}, "9": {"8_1": 0}}
