"""The position of relevant passages: the pairs that count, their chunks, and the other output."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from farrank_rankers.tokenizer import TextTokenizer
from farrank_training.data_sets.positions import (
    Position,
    by_chunk,
    positions_of_articles,
    positions_of_passages,
    positions_of_snippets,
)
from farrank_trec.errors import InputError
from support.field_files import write_lines

if TYPE_CHECKING:
    from support.commands import Outcome

Farrank = Callable[..., "Outcome"]

# Some 40 words each, one token per word.
SEA = " ".join(f"the sea is {number} and wide" for number in range(7))
BREAD = " ".join(["bread", "is", "made", "of", "flour", "and", "water"] * 6)
FILLER = " ".join(["nothing", "much", "to", "say", "here"] * 20)


def test_a_position_counts_in_the_chunks_of_its_first_and_its_last_token() -> None:
    places = [(0, 477), (476, 478), (477, 500), (5 * 477, 6 * 477), (6 * 477, 6 * 477 + 1), (9999, 10100)]
    counted = by_chunk([Position("q", str(start), start, end) for start, end in places])

    assert [each.chunk for each in counted] == ["1", "2", "3", "4", "5", "6", "6+"]
    assert [each.starts for each in counted] == [2, 1, 0, 0, 0, 1, 2]
    assert [each.ends for each in counted] == [1, 2, 0, 0, 0, 1, 2]


def test_the_first_relevant_snippet_of_a_pair_counts(tmp_path: Path) -> None:
    lines = ["q1 Q0 D_1_4 1", "q1 Q0 D_1_2 3", "q1 Q0 D_1_0 0", "q2 Q0 D_1_7 2", "q3 Q0 D2_1 0"]
    positions = positions_of_snippets(write_lines(tmp_path / "qrels", lines), 100)

    assert list(positions.found) == [Position("q1", "D_1", 200, 300), Position("q2", "D_1", 700, 800)]
    assert positions.notes == ("estimated: snippets taken as 100 tokens each; grades from 1 count",)
    least = positions_of_snippets(tmp_path / "qrels", 100, min_grade=3)
    assert [each.query_id for each in least.found] == ["q1"]


@pytest.mark.parametrize(
    ("line", "message"), [("q Q0 D1 1", "DOCID_INDEX; 'D1' is not"), ("q Q0 D_1 0", "no snippet is judged 1")]
)
def test_snippets_that_cannot_be_placed(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        positions_of_snippets(write_lines(tmp_path / "qrels", [line]), 100)


@pytest.fixture
def collection(tmp_path: Path) -> dict[str, Path]:
    """Write passages, documents that contain them with changes, and judgements of both."""
    passages = [
        {"id": "p1", "text": SEA},
        {"id": "p2", "text": BREAD},
        {"id": "p3", "text": "not there " * 9},
    ]
    documents = [
        {"id": "d1", "text": f"{FILLER} {BREAD} {FILLER} {SEA}"},
        {"id": "d2", "text": f"{FILLER} {SEA.replace('wide', 'broad')}"},
        {"id": "d3", "text": "never asked for"},
    ]
    qrels = ["both 0 p1 1", "both 0 p2 1", "both 0 p3 0", "sea 0 p1 1", "lost 0 p3 1", "lost 0 p9 1"]
    document_qrels = ["both 0 d1 1", "sea 0 d2 2", "sea 0 d3 0", "lost 0 d2 1", "lost 0 d8 1", "other 0 d3 1"]
    return {
        "passages": write_lines(tmp_path / "p.jsonl", passages),
        "documents": write_lines(tmp_path / "d.jsonl", documents),
        "qrels": write_lines(tmp_path / "p.txt", qrels),
        "document-qrels": write_lines(tmp_path / "d.txt", document_qrels),
    }


def test_passages_are_looked_for_in_the_documents_of_their_queries(
    collection: dict[str, Path], tokenizer: TextTokenizer
) -> None:
    searched: list[int] = []
    positions = positions_of_passages(
        [collection["passages"]],
        collection["qrels"],
        [collection["documents"]],
        collection["document-qrels"],
        tokenizer,
        progress=searched.append,
    )

    filler, bread, sea = (tokenizer.count(text) for text in (FILLER, BREAD, SEA))
    assert list(positions.found) == [
        Position("both", "d1", filler, filler + bread),  # bread comes before the sea
        Position("sea", "d2", filler, filler + sea - 1),  # its last word was changed
    ]
    assert searched == [1, 2]
    assert positions.notes == (
        "matched: 3 of 4 relevant passages, 2 by common substring and 1 by common subsequence; 2 of 3 pairs "
        "of query and document have one",
        "not in the collection: 1 relevant documents, d8 among them",
        "not in the collection: 1 relevant passages, p9 among them",
    )


def test_passages_that_name_their_article_are_looked_for_in_it(
    tmp_path: Path, tokenizer: TextTokenizer
) -> None:
    def passage(name: str, article: str, place: int, text: str) -> dict[str, Any]:
        return {"pid": name, "article": article, "pos": place, "text": text}

    lines = [
        passage("b", "a1", 7, SEA),
        passage("a", "a1", 0, FILLER),
        passage("c", "a1", 9, BREAD),
        passage("d", "a2", 0, BREAD),
    ]
    path = write_lines(tmp_path / "p.jsonl", lines)
    qrels = write_lines(tmp_path / "q.txt", ["q1 0 c 1", "q1 0 b 1", "q1 0 d 1", "q2 0 gone 1"])

    positions = positions_of_articles(path, qrels, tokenizer)

    filler, bread, sea = (tokenizer.count(text) for text in (FILLER, BREAD, SEA))
    assert list(positions.found) == [
        Position("q1", "a1", filler, filler + sea),
        Position("q1", "a2", 0, bread),
    ]
    with pytest.raises(InputError, match="no relevant passage was found"):
        positions_of_articles(path, write_lines(tmp_path / "q.txt", ["q2 0 gone 1"]), tokenizer)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"pid": "x", "text": "t"}, "p.jsonl:2: 'article' is missing"),
        ({"pid": "x", "article": "a", "pos": "1", "text": "t"}, "'pos' must be a whole number"),
        ({"pid": "x", "article": "a", "pos": 0, "text": "t"}, "article 'a' has two passages with pos 0"),
        ({"pid": "p", "article": "a", "pos": 1, "text": "t"}, "the id 'p' is already used at .*p.jsonl:1"),
        (
            {"pid": "x", "article": "a", "pos": 1, "text": "t", "split": "dev"},
            "article 'a' is of split 'dev'",
        ),
    ],
)
def test_articles_that_are_malformed(
    tmp_path: Path, tokenizer: TextTokenizer, line: dict[str, Any], message: str
) -> None:
    first = {"pid": "p", "article": "a", "pos": 0, "text": "t"}
    path = write_lines(tmp_path / "p.jsonl", [first, line])

    with pytest.raises(InputError, match=message):
        positions_of_articles(path, write_lines(tmp_path / "q.txt", ["q 0 p 1"]), tokenizer)


def test_the_command_writes_table_figures_and_picture(
    farrank: Farrank, collection: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    flags = [each for name, path in collection.items() for each in (f"--{name}", path)]
    outcome = farrank("data", "positions", *flags, "--name", "small", "--out", out)

    assert outcome.exit_code == 0
    assert outcome.out == (out / "positions.md").read_text(encoding="utf-8")
    assert "| 1 | 100.0% | 100.0% | 85.9% | 71.0% | 83.8% | 76.4% |" in outcome.out.splitlines()
    with (out / "positions.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows[0] == {
        "chunk": "1",
        "starts": "2",
        "ends": "2",
        "starts_percent": "100.00",
        "ends_percent": "100.00",
    }
    assert (out / "positions.png").read_bytes().startswith(b"\x89PNG")
    # The papers' figures are for other chunks.
    again = farrank("data", "positions", *flags, "--chunk-tokens", "100", "--out", out)
    assert "the papers'" not in again.out


@pytest.mark.parametrize(
    "flags",
    [
        ["--snippets", "a"],
        ["--snippets", "a", "--snippet-tokens", "9", "--qrels", "b"],
        ["--passages", "a"],
        ["--passages", "a", "b", "--qrels", "c"],
        ["--passages", "a", "--qrels", "b", "--documents", "c"],
        [],
    ],
)
def test_flags_that_do_not_go_together(farrank: Farrank, tmp_path: Path, flags: list[str]) -> None:
    outcome = farrank("data", "positions", *flags, "--out", tmp_path)

    assert (outcome.exit_code, outcome.out) == (2, "")
    assert outcome.err.startswith("farrank: data positions: give --snippets and --snippet-tokens; or ")


def test_what_is_wrong_with_a_file_is_one_line(farrank: Farrank, tmp_path: Path) -> None:
    qrels = write_lines(tmp_path / "qrels", ["q 0 D_1"])
    flags = ["--snippets", qrels, "--snippet-tokens", "9", "--out", tmp_path / "out"]
    outcome = farrank("data", "positions", *flags)

    assert (outcome.exit_code, outcome.err) == (
        2,
        f"farrank: {qrels}:1: 3 columns; qrels have 4: query_id iteration doc_id grade\n",
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.data
def test_fira_has_the_shape_that_the_papers_found(data_folder: Path) -> None:
    positions = positions_of_snippets(data_folder / "fira/fira-trec19-qrels-snippets.txt.gz", 160)
    assert len(positions.found) == 1862
    shares = [100 * each.starts / 1862 for each in by_chunk(positions.found)]
    assert shares == pytest.approx([83.8, 9.9, 2.3, 2.2, 0.7, 0.4, 0.7], abs=1.5)
