"""Workloads from files, and the errors of invalid files."""

import json
from pathlib import Path
from typing import Any

import pytest

from farrank_loadtest.targets import CandidateDocument
from farrank_loadtest.workloads import Call
from farrank_loadtest.workloads.recorded import read_candidates, read_jsonl
from farrank_trec.errors import InputError


def written(folder: Path, *lines: Any, name: str = "calls.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def test_calls_with_texts_ids_and_plain_strings(tmp_path: Path) -> None:
    collection = written(
        tmp_path, {"id": "c", "text": "gamma"}, {"id": "x", "text": "-"}, name="collection.jsonl"
    )
    path = written(
        tmp_path,
        {"query": "q1", "documents": [{"id": "a", "text": "alpha"}, {"id": "c"}]},
        "",
        {"query": "q2", "documents": ["plain", {"id": "b", "text": ""}]},
    )
    workload = read_jsonl(path, [collection])
    assert workload.calls == (
        Call("q1", (CandidateDocument("a", "alpha"), CandidateDocument("c", "gamma"))),
        Call("q2", (CandidateDocument("0", "plain"), CandidateDocument("b", ""))),
    )
    assert "2 calls" in workload.describe()
    assert "documents a call: 2;" in workload.describe()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not JSON"),
        ([], "object"),
        ({"documents": ["d"]}, "'query' is missing"),
        ({"query": " ", "documents": ["d"]}, "'query' must not be empty"),
        ({"query": 3, "documents": ["d"]}, "'query' must be a string"),
        ({"query": "q", "documents": []}, "'documents' must be a list"),
        ({"query": "q", "documents": "d"}, "'documents' must be a list"),
        ({"query": "q", "documents": ["d", 7]}, "documents[1]: must be a string or an object"),
        ({"query": "q", "documents": [{"text": "t"}]}, "documents[0]: 'id' is missing"),
        ({"query": "q", "documents": [{"id": "a", "text": 1}]}, "documents[0]: 'text' must be a string"),
        ({"query": "q", "documents": [{"id": "zz"}]}, "document 'zz' has no text"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: Any, said: str) -> None:
    path = written(tmp_path, {"query": "q", "documents": ["d"]}, line)
    with pytest.raises(InputError) as raised:
        read_jsonl(path)
    assert str(raised.value).startswith(f"{path}:2: ")
    assert said in str(raised.value)


def test_a_file_without_calls_or_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no call"):
        read_jsonl(written(tmp_path))
    with pytest.raises(InputError, match=r"absent\.jsonl: No such file"):
        read_jsonl(tmp_path / "absent.jsonl")


@pytest.fixture
def first_stage(tmp_path: Path) -> tuple[Path, Path, list[Path]]:
    """Write a run of two queries, their texts, and a collection in two files."""
    run = written(
        tmp_path,
        *(f"q{q} Q0 d{d} {d} {10.0 - d} bm25" for q in (1, 2) for d in (1, 2, 3)),
        name="run.txt",
    )
    queries = written(tmp_path, "q1\twho wrote it", "q2\twhen was it", "q3\tnever asked", name="queries.tsv")
    halves = [
        written(tmp_path, {"id": "d1", "text": "one"}, {"id": "d2", "text": "two"}, name="a.jsonl"),
        written(tmp_path, {"id": "d3", "title": "Three", "text": "3"}, name="b.jsonl"),
    ]
    return run, queries, halves


def test_a_run_and_its_collection_make_calls(first_stage: tuple[Path, Path, list[Path]]) -> None:
    run, queries, collection = first_stage
    workload = read_candidates(run, queries, collection, depth=2)
    documents = (CandidateDocument("d1", "one"), CandidateDocument("d2", "two"))
    assert workload.calls == (Call("who wrote it", documents, "q1"), Call("when was it", documents, "q2"))
    assert read_candidates(run, queries, collection, depth=9).calls[1].documents[2].text == "Three\n\n3"


def test_parts_missing_from_a_run_are_named(first_stage: tuple[Path, Path, list[Path]]) -> None:
    run, queries, collection = first_stage
    with pytest.raises(InputError, match=r"run\.txt: 1 of 3 candidate documents are not in .*: d3"):
        read_candidates(run, queries, collection[:1], depth=3)
    queries.write_text("q1\twho wrote it\n")
    with pytest.raises(InputError, match=r"1 of 2 queries of the run have no text in the queries: q2"):
        read_candidates(run, queries, collection, depth=3)
    run.write_text("q1 Q0 d1 1 high bm25\n")
    with pytest.raises(InputError, match=r"run\.txt:1: "):
        read_candidates(run, queries, collection, depth=3)
