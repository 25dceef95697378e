"""Training sets: the documents of a group, omitted data, and errors. Draws follow the seed."""

import gzip
import hashlib
import json
import os
import pickle
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farrank_training.errors import TrainingError
from farrank_training.groups import Candidates, Group, TrainingSet, drawn
from farrank_training.known_relevant import text_key
from farrank_training.training_set import jsonl_set, judged_set, triples_set
from farrank_trec.errors import InputError

QUERIES = "q1\tfirst query\nq2\tsecond query\nq3\tno judgement\nq4\tno candidate\nq5\tabsent text\n"
QRELS = "q1 0 a 1\nq1 0 b 2\nq1 0 c 0\nq2 0 c 1\nq4 0 a 1\nq5 0 gone 1\n"
RUN = "".join(
    f"{query} Q0 {doc_id} 0 {-rank} t\n"
    for query, doc_ids in {"q1": "abcdef", "q2": "cfe", "q3": "a", "q5": "ab"}.items()
    for rank, doc_id in enumerate(doc_ids)
)
COLLECTION = "".join(json.dumps({"id": each, "text": f"text {each}"}) + "\n" for each in "abcdfg")


@dataclass
class Files:
    """A small collection with its judgements, in a folder. Tests overwrite some of these files."""

    folder: Path

    def write(self, **contents: str) -> None:
        for name, content in contents.items():
            (self.folder / name).write_text(content, encoding="utf-8")

    def open(self, **options: Any) -> TrainingSet:
        queries, qrels, run, docs = (self.folder / name for name in ("queries", "qrels", "run", "docs"))
        return judged_set(queries, qrels, run, [docs], **options)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    found = Files(tmp_path)
    found.write(queries=QUERIES, qrels=QRELS, run=RUN, docs=COLLECTION)
    return found


def groups(found: TrainingSet, epochs: int = 1) -> list[Group]:
    return [found.group(index, epoch) for epoch in range(epochs) for index in range(len(found))]


def test_a_relevant_document_stands_first_and_others_behind_it(files: Files) -> None:
    found = files.open(negatives=2)
    assert len(found) == 2
    firsts: set[str] = set()
    others: set[str] = set()
    for group in groups(found, epochs=40):
        assert group.teacher is None
        if group.query_id == "q1":
            assert group.query == "first query"
            firsts.add(group.documents[0])
            others.update(group.documents[1:])
            assert len(set(group.documents)) == 3
        else:
            assert group.query_id == "q2"
            assert group.documents == ("text c", "text f", "text f")
    # a and b are relevant; c has grade 0, d and f none, e no text.
    assert firsts == {"text a", "text b"}
    assert others == {"text c", "text d", "text f"}


def test_a_group_knows_all_relevant_documents_of_its_query(files: Files) -> None:
    found = files.open()
    names: dict[object, str] = {}
    for group in groups(found, epochs=20):
        names |= zip(group.keys, group.documents, strict=True)
    # One key for each document, whichever query it was drawn for.
    assert sorted(names.values()) == ["text a", "text b", "text c", "text d", "text f"]
    first, second = groups(found)
    assert {names[key] for key in first.relevant} == {"text a", "text b"}
    assert {names[key] for key in second.relevant} == {"text c"}


def test_candidates_are_all_relevant_documents_and_some_others(files: Files) -> None:
    found = files.open()
    first, second = (found.candidates(index, 2) for index in range(2))
    assert (first.query, first.positives) == ("first query", ("text a", "text b"))
    # The first of them is that of the first epoch.
    assert len(first.negatives) == 2
    assert first.negatives[:1] == found.group(0, 0).documents[1:]
    # Nothing repeats.
    assert second == Candidates("second query", ("text c",), ("text f",))


def test_negatives_come_from_the_first_candidates_alone(files: Files) -> None:
    found = files.open(top=3)
    assert {group.documents[1] for group in groups(found, 20) if group.query_id == "q1"} == {"text c"}


def test_omissions_are_reported(files: Files) -> None:
    assert files.open(negatives=2).notes == [
        "2 of 7 judged or candidate documents are not in the collection: e, gone",
        "3 of 5 queries are left out: 1 without a relevant document, 1 without a negative among the first "
        "100 candidates, 1 whose relevant documents have no text",
        "1 of 5 queries have fewer than 2 negatives, which repeat",
    ]
    assert files.open(query_ids=["q1"]).notes == [
        "1 of 6 judged or candidate documents are not in the collection: e"
    ]


def test_blank_documents_are_no_texts(files: Files) -> None:
    files.write(docs=COLLECTION.replace('"text c"', '" "').replace('"text a"', '""'))
    found = files.open()
    assert {group.query_id for group in groups(found)} == {"q1"}
    assert found.notes[1:] == [
        "2 of 7 judged or candidate documents are blank",
        "4 of 5 queries are left out: 2 whose relevant documents have no text, 1 without a relevant document"
        ", 1 without a negative among the first 100 candidates",
    ]


def test_queries_can_be_chosen(files: Files) -> None:
    assert [group.query_id for group in groups(files.open(query_ids={"q2"}))] == ["q2"]
    with pytest.raises(TrainingError, match=r"query_ids: 'x' is not in .*queries \(2 of them are not\)"):
        files.open(query_ids=["q1", "y", "x"])
    with pytest.raises(TrainingError, match="query_ids is empty; it must name at least 1 query"):
        files.open(query_ids=[])


def test_keys_can_be_named(files: Files) -> None:
    files.write(docs="".join(json.dumps({"url": each, "story": each * 3}) + "\n" for each in "abcdef"))
    queries = files.folder / "queries.jsonl"
    queries.write_text('{"qid": "q1", "title": "t", "description": "d"}\n')
    found = judged_set(
        queries,
        files.folder / "qrels",
        files.folder / "run",
        [files.folder / "docs"],
        query_field="description",
        fields={"id": "url", "text": "story"},
    )
    group = found.group(0, 0)
    assert group.query == "d"
    assert group.documents[0] in ("aaa", "bbb")


@pytest.mark.parametrize(
    ("contents", "options", "message"),
    [
        ({"queries": "q1 text\n"}, {}, "queries:1: 1 columns; queries have 2"),
        ({"queries": "q1\ttext\nq2\t\u200b\n"}, {}, "queries:2: the text of query 'q2' is empty"),
        ({"qrels": "q1 0 a 1\nq1 0 a\n"}, {}, "qrels:2: 3 columns; qrels have 4"),
        ({"run": "q1 Q0 a 1 high t\n"}, {}, "run:1: score 'high' must be a number"),
        ({"docs": COLLECTION + "{\n"}, {}, "docs:7: not JSON at character 2"),
        ({"docs": COLLECTION + '{"id": "a"}\n'}, {}, "docs:7: 'text' or 'contents' or 'body' is missing"),
    ],
)
def test_wrong_files_are_named_before_training(
    files: Files, contents: dict[str, str], options: dict[str, Any], message: str
) -> None:
    files.write(**contents)
    with pytest.raises(InputError) as caught:
        files.open(**options)
    assert str(caught.value).startswith(f"{files.folder}/{message}")


@pytest.mark.parametrize(
    ("contents", "options", "message"),
    [
        ({}, {"negatives": 0}, "negatives is 0; it must be at least 1"),
        ({}, {"top": 0}, "top is 0; it must be at least 1"),
        ({"qrels": "q1 0 a 0\n"}, {}, "none of 5 queries can be trained on: 5 without a relevant document"),
        (
            {"docs": '{"id": "a", "text": "x"}\n'},
            {"query_ids": ["q1", "q2"]},
            "none of 2 queries can be trained on: 1 whose negatives have no text, 1 whose relevant documents "
            "have no text",
        ),
    ],
)
def test_what_no_training_can_begin_with(
    files: Files, contents: dict[str, str], options: dict[str, Any], message: str
) -> None:
    files.write(**contents)
    with pytest.raises(TrainingError) as caught:
        files.open(**options)
    assert str(caught.value) == message


def test_files_have_checksums(files: Files) -> None:
    found = files.open().checksums
    assert found == {
        str(files.folder / name): hashlib.sha256((files.folder / name).read_bytes()).hexdigest()
        for name in ("queries", "qrels", "run", "docs")
    }


def test_a_pipe_is_read_once_and_has_no_checksum(files: Files) -> None:
    pipe = files.folder / "docs"
    pipe.unlink()
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(COLLECTION))
    writer.start()
    found = files.open()
    writer.join()
    # Opening it again would wait for another writer for ever.
    assert {Path(each).name for each in found.checksums} == {"queries", "qrels", "run"}
    assert {group.query_id for group in groups(found)} == {"q1", "q2"}


def write_jsonl(path: Path, *lines: Any) -> Path:
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


TRIPLES = "first query\tyes\tno\r\n\nsecond\tda\u2028da\tnet\n"


@pytest.mark.parametrize("name", ["triples.tsv", "triples.tsv.gz"])
def test_triples_are_groups_as_they_are(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(TRIPLES.encode()) if path.suffix == ".gz" else TRIPLES.encode())
    found = triples_set(path)
    texts = [("1", "first query", ("yes", "no")), ("3", "second", ("da\u2028da", "net"))]
    expected = [
        Group(*each, keys=tuple(map(text_key, each[2])), relevant=frozenset({text_key(each[2][0])}))
        for each in texts
    ]
    assert groups(found, 2) == expected * 2
    assert found.candidates(0, 2) == Candidates("first query", ("yes",), ("no",))
    assert found.notes == []
    assert list(found.checksums) == [str(path)]


def test_what_is_relevant_in_one_line_is_known_in_all(tmp_path: Path) -> None:
    triples = tmp_path / "triples.tsv"
    triples.write_text("one\ta\tx\none\tb\tx\ntwo\tc\ta\n")
    lines = write_jsonl(
        tmp_path / "groups.jsonl",
        {"query": "one", "pos": ["a"], "neg": ["x"]},
        {"query": "one", "pos": ["b"], "neg": []},
        {"query": "two", "pos": ["c"], "neg": ["a"]},
    )
    for found in (triples_set(triples), jsonl_set(lines)):
        first, *_, last = groups(found)
        assert first.relevant == {text_key("a"), text_key("b")}
        assert last.relevant == {text_key("c")}
        assert last.keys == (text_key("c"), text_key("a"))


@pytest.mark.parametrize("name", ["groups.jsonl", "groups.jsonl.gz"])
def test_json_lines_give_one_relevant_text_and_some_others(tmp_path: Path, name: str) -> None:
    path = write_jsonl(
        tmp_path / name,
        {"query": "one", "pos": ["p1", "p2"], "neg": ["n1", "n2", "n3"], "prompt": 1, "pos_scores": None},
        {"query": "none", "pos": [], "neg": ["n"]},
        {"query": "two", "pos": ["p"], "neg": ["n"]},
        {"query": "none", "pos": ["p"], "neg": []},
    )
    found = jsonl_set(path, negatives=2)
    drawn_of = [group for group in groups(found, 40) if group.query_id == "1"]
    assert {group.documents[0] for group in drawn_of} == {"p1", "p2"}
    assert {each for group in drawn_of for each in group.documents[1:]} == {"n1", "n2", "n3"}
    last = found.group(1, 0)
    assert (last.query_id, last.query, last.documents, last.teacher) == ("3", "two", ("p", "n", "n"), None)
    assert found.candidates(1, 2) == Candidates("two", ("p",), ("n",))
    assert found.candidates(0, 2).positives == ("p1", "p2")
    assert len(found.candidates(0, 2).negatives) == 2
    assert found.notes == [
        "2 of 4 queries are left out: 1 without a relevant document, 1 without a negative",
        "1 of 4 queries have fewer than 2 negatives, which repeat",
    ]


def test_a_teachers_scores_go_with_their_texts(tmp_path: Path) -> None:
    scores = {"p1": 9.0, "p2": 8, "n1": 1.5, "n2": -2, "n3": 0.0}
    line = {
        "query": "q",
        "pos": ["p1", "p2"],
        "neg": ["n1", "n2", "n3"],
        "pos_scores": [scores["p1"], scores["p2"]],
        "neg_scores": [scores["n1"], scores["n2"], scores["n3"]],
    }
    found = jsonl_set(write_jsonl(tmp_path / "taught.jsonl", line), negatives=2)
    for group in groups(found, 10):
        assert group.teacher == tuple(scores[text] for text in group.documents)


TAUGHT = {"query": "q", "pos": ["p"], "neg": ["n"], "pos_scores": [1], "neg_scores": [0]}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([{"pos": []}], "1: 'query' is missing (the object has 'pos')"),
        ([{"query": " ", "pos": [], "neg": []}], "1: 'query' is empty"),
        ([{"query": "\u200b\u00ad", "pos": [], "neg": []}], "1: 'query' is empty"),
        ([{"query": "q", "pos": ["p"]}], "1: 'neg' is missing"),
        ([{"query": "q", "pos": "p", "neg": []}], "1: 'pos' must be a list, not str"),
        ([{"query": "q", "pos": ["p", 1], "neg": []}], "1: 'pos[1]' must be a string, not int"),
        ([{"query": "q", "pos": ["p"], "neg": ["n", ""]}], "1: 'neg[1]' is empty"),
        (
            [TAUGHT, TAUGHT | {"neg_scores": None}],
            "2: 'pos_scores' is given alone; a teacher scores 'pos' and 'neg'",
        ),
        ([TAUGHT | {"neg_scores": [1, 2]}], "1: 'neg_scores' has 2 numbers; 'neg' has 1 texts"),
        ([TAUGHT | {"pos_scores": [True]}], "1: 'pos_scores[0]' is True; it must be finite in fp32"),
        ([TAUGHT | {"pos_scores": [float("nan")]}], "1: 'pos_scores[0]' is nan; it must be finite in fp32"),
        ([TAUGHT | {"neg_scores": [-1e39]}], "1: 'neg_scores[0]' is -1e+39; it must be finite in fp32"),
        (
            [TAUGHT | {"pos_scores": [10**400]}],
            f"1: 'pos_scores[0]' is 1{'0' * 99}; it must be finite in fp32",
        ),
        (
            [TAUGHT, {"query": "q", "pos": ["p"], "neg": ["n"]}],
            "2: 'pos_scores' and 'neg_scores' are missing; earlier lines have them",
        ),
        (
            [{"query": "q", "pos": ["p"], "neg": ["n"]}, TAUGHT],
            "2: 'pos_scores' and 'neg_scores' are given; earlier lines have none",
        ),
        ([], ' the file is empty; expected lines of {"query": …, "pos": […], "neg": […]}'),
    ],
)
def test_wrong_json_lines_are_named(tmp_path: Path, lines: list[Any], message: str) -> None:
    path = write_jsonl(tmp_path / "groups.jsonl", *lines)
    with pytest.raises(InputError) as caught:
        jsonl_set(path)
    assert str(caught.value) == f"{path}:{message}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\tb\tc\na\tb\n", "2: 2 columns; triples have 3, separated by tabs: query relevant other"),
        ("a\t \tc\n", "1: the relevant text is empty"),
        ("\tb\tc\n", "1: the query is empty"),
        # A zero-width space: no tokenizer makes a token of it, and training would end in the middle.
        ("\u200b\tb\tc\n", "1: the query is empty"),
        ("a\tb\t\n", "1: the other text is empty"),
        ("\n", " the file is empty; expected lines of query<TAB>relevant text<TAB>other text"),
    ],
)
def test_wrong_triples_are_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "triples.tsv"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        triples_set(path)
    assert str(caught.value) == f"{path}:{message}"


def test_json_lines_of_no_use_begin_no_training(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "groups.jsonl", {"query": "q", "pos": [], "neg": ["n"]})
    with pytest.raises(
        TrainingError, match="none of 1 queries can be trained on: 1 without a relevant document"
    ):
        jsonl_set(path)
    with pytest.raises(TrainingError, match="negatives is 0; it must be at least 1"):
        jsonl_set(path, negatives=0)


@pytest.mark.parametrize("source", ["judged", "jsonl", "triples"])
def test_groups_are_the_same_in_another_process(files: Files, tmp_path: Path, source: str) -> None:
    lines = [{"query": str(each), "pos": ["p"], "neg": list("nopqrs")} for each in range(5)]
    jsonl = write_jsonl(tmp_path / "groups.jsonl.gz", *lines)
    (tmp_path / "triples.tsv").write_text(TRIPLES)
    makers: dict[str, Callable[[], TrainingSet]] = {
        "judged": lambda: files.open(seed=3),
        "jsonl": lambda: jsonl_set(jsonl, seed=3),
        "triples": lambda: triples_set(tmp_path / "triples.tsv"),
    }
    found = makers[source]()
    expected = groups(found, 3)
    assert groups(pickle.loads(pickle.dumps(found)), 3) == expected
    assert groups(makers[source](), 3) == expected


def test_seed_and_epoch_draw_others(tmp_path: Path) -> None:
    lines = [{"query": "q", "pos": ["p"], "neg": list("abcdefghij")} for _ in range(30)]
    path = write_jsonl(tmp_path / "groups.jsonl", *lines)
    one, other = jsonl_set(path, seed=1), jsonl_set(path, seed=2)
    first = [group.documents for group in groups(one)]
    assert [group.documents for group in groups(other)] != first
    assert [one.group(index, 1).documents for index in range(30)] != first
    assert len(set(first)) > 3  # the same line at another position has other draws


def test_draws_are_pinned() -> None:
    """A run that is resumed on another machine, or with another Python, repeats its draws."""
    assert drawn(4, 100, 0, 0, "q1", "negative") == [77, 19, 35, 12]


@given(st.integers(1, 40), st.integers(1, 20), st.integers())
def test_no_number_comes_again_before_all_others_came(count: int, of: int, key: int) -> None:
    found = drawn(count, of, key)
    counts = Counter(found)
    assert len(found) == count
    assert set(found) <= set(range(of))
    assert max(counts.values()) - min(counts[number] for number in range(of)) <= 1


def test_all_numbers_are_drawn_alike() -> None:
    """Two of five, 2,000 times: each has 800 on average, with a standard deviation of 22."""
    counts = Counter(number for key in range(2000) for number in drawn(2, 5, key))
    assert all(690 < counts[number] < 910 for number in range(5))


def test_another_seed_reads_nothing_again(files: Files) -> None:
    found = files.open(negatives=2, seed=1)
    other = found.of_seed(5)
    for path in files.folder.iterdir():
        if path.name != "docs":
            path.unlink()
    assert groups(other, 20) != groups(found, 20) == groups(other.of_seed(1), 20)
