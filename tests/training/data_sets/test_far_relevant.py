"""FarRelevant: the start of relevant passages, the length of documents, and splits that share nothing."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farrank_rankers.tokenizer import TextTokenizer
from farrank_training.data_sets.far_relevant import DocumentMaker, FarRelevantOptions, make_far_relevant
from farrank_training.data_sets.made_data import SPLITS, MadeSplit
from farrank_training.errors import TrainingError
from farrank_training.text_store import TextStore
from farrank_trec import read_qrels, read_queries, read_run
from farrank_trec.errors import InputError
from support.field_files import folder_content, read_json_lines, write_lines

if TYPE_CHECKING:
    from support.commands import Outcome

Farrank = Callable[..., "Outcome"]

# Words of one token and of several.
WORDS = ["sea", "bread", "1984", "antidisestablishmentarianism", "the", "of", "naïve", "a.b", "harbour"]
OPTIONS = FarRelevantOptions(train=40, dev=6, test=10, candidates=12)
RELEVANT = 100


def words(rng: Random, count: int) -> str:
    return " ".join(rng.choices(WORDS, k=count))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Passages of 5 to 120 words; p0 is relevant to two queries, p1 too long, p2 absent; q3 has p3 and p4."""
    folder = tmp_path_factory.mktemp("passages")
    rng = Random(5)
    passages = [{"id": f"p{n}", "text": words(rng, rng.randint(5, 120))} for n in range(RELEVANT)]
    passages[1]["text"] = words(rng, 950)
    del passages[2]
    passages += [{"docid": f"n{n}", "contents": words(rng, rng.randint(5, 120))} for n in range(900)]
    passages += [{"docid": "blank", "contents": " "}, {"docid": "long", "contents": words(rng, 3000)}]
    qrels = [f"q{n} 0 p{n} {1 + n % 3}" for n in range(RELEVANT)]
    qrels += ["q0b 0 p0 1", "q3 0 p4 1", "q5 0 n0 0", "unasked 0 n1 1"]
    queries = [f"q{n}\t{words(rng, 4)}\n".strip() for n in range(RELEVANT)] + [
        "q0b\tthe sea",
        "never\tjudged",
    ]
    return {
        "passages": write_lines(folder / "passages.jsonl", passages),
        "queries": write_lines(folder / "queries.tsv", queries),
        "qrels": write_lines(folder / "qrels.txt", qrels),
    }


@pytest.fixture(scope="module")
def made(source: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The collection that most tests use."""
    out = tmp_path_factory.mktemp("far") / "out"
    make_far_relevant([source["passages"]], source["queries"], source["qrels"], out, options=OPTIONS)
    return out


def texts_of(source: dict[str, Path]) -> dict[str, str]:
    lines = read_json_lines(source["passages"])
    return {each.get("id") or each["docid"]: each.get("text") or each["contents"] for each in lines}


@pytest.mark.parametrize("split", SPLITS)
def test_the_relevant_passage_starts_behind_512_tokens_and_lengths_are_within_bounds(
    made: Path, source: dict[str, Path], tokenizer: TextTokenizer, split: str
) -> None:
    texts = texts_of(source)
    documents = read_json_lines(MadeSplit(made / split).collection)
    assert documents
    for document in documents:
        relevant = document["passages"][document["relevant"] - 1]
        assert document["id"] == f"far-{relevant}"
        assert document["text"] == "\n\n".join(texts[each] for each in document["passages"])
        before = "\n\n".join(texts[each] for each in document["passages"][: document["relevant"] - 1])
        assert tokenizer.count(before) == document["starts_at"] > 512
        own = tokenizer.count(texts[relevant])
        assert 512 + own <= tokenizer.count(document["text"]) == document["tokens"] <= 1431
        assert len(set(document["passages"])) == len(document["passages"])


def test_lengths_and_places_spread_over_what_is_allowed(made: Path) -> None:
    documents = read_json_lines(MadeSplit(made / "train").collection)
    lengths = [document["tokens"] for document in documents]
    assert min(lengths) < 800
    assert max(lengths) > 1200
    # The relevant passage is not always the last one, nor always the first after the prefix.
    assert {document["relevant"] == len(document["passages"]) for document in documents} == {True, False}


def test_splits_share_no_passage_and_no_query(made: Path, source: dict[str, Path]) -> None:
    judged = read_qrels(source["qrels"])
    used: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    for split in SPLITS:
        place = MadeSplit(made / split)
        queries = read_queries(place.queries)
        assert len(queries) == getattr(OPTIONS, split)
        asked.update(queries.keys())
        documents = read_json_lines(place.collection)
        used.update({each for document in documents for each in document["passages"]})
    assert max(asked.values()) == 1
    assert max(used.values()) == 1
    # Passages that are relevant to a query appear in no other document.
    relevant = {each for query_id in asked for each, grade in judged[query_id].items() if grade}
    for split in SPLITS:
        for document in read_json_lines(MadeSplit(made / split).collection):
            beside = set(document["passages"]) - {document["id"].removeprefix("far-")}
            assert not beside & relevant
            assert not beside & {"blank", "long"}


def test_judgements_name_every_document_that_holds_a_relevant_passage(
    made: Path, source: dict[str, Path]
) -> None:
    judged = read_qrels(source["qrels"])
    for split in SPLITS:
        place = MadeSplit(made / split)
        documents = {each["id"]: set(each["passages"]) for each in read_json_lines(place.collection)}
        qrels = read_qrels(place.qrels)
        assert qrels.keys() == read_queries(place.queries).keys()
        for query_id, found in qrels.items():
            relevant = {each: grade for each, grade in judged[query_id].items() if grade}
            assert found == {
                doc_id: relevant[doc_id.removeprefix("far-")]
                for doc_id, held in documents.items()
                if held & relevant.keys()
            }


def test_candidates_are_documents_of_the_split(made: Path) -> None:
    for split in SPLITS:
        place = MadeSplit(made / split)
        documents = {each["id"] for each in read_json_lines(place.collection)}
        run = read_run(place.candidates)
        assert run.keys() == read_queries(place.queries).keys()
        for ranked in run.values():
            assert len(ranked) == min(12, len(documents))
            assert {each.doc_id for each in ranked} <= documents


def test_a_record_says_how_it_was_made(made: Path, source: dict[str, Path]) -> None:
    said = json.loads((made / "data.json").read_text(encoding="utf-8"))

    assert said["kind"] == "far-relevant"
    assert said["options"]["before"] == 512
    assert said["tokenizer"]["source"] == "embedded"
    assert len(said["tokenizer"]["sha256"]) == 64
    assert said["inputs"].keys() == {"passages.jsonl", "queries.tsv", "qrels.txt"}
    assert {split: said["splits"][split]["queries"] for split in SPLITS} == {
        "train": 40,
        "dev": 6,
        "test": 10,
    }


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(
    source: dict[str, Path], made: Path, tmp_path: Path
) -> None:
    def make(name: str, seed: int) -> Path:
        options = FarRelevantOptions(train=40, dev=6, test=10, candidates=12, seed=seed)
        files = [source["passages"]], source["queries"], source["qrels"]
        make_far_relevant(*files, tmp_path / name, options=options)
        return tmp_path / name

    assert folder_content(make("again", 0)) == folder_content(made)
    other = folder_content(make("other", 1))
    assert other["train/collection.jsonl"] != folder_content(made)["train/collection.jsonl"]


def test_queries_that_cannot_be_used_are_counted(source: dict[str, Path], tmp_path: Path) -> None:
    files = [source["passages"]], source["queries"], source["qrels"]

    with pytest.raises(TrainingError, match="train is 200; only 99 queries are left") as error:
        make_far_relevant(*files, tmp_path / "out", options=FarRelevantOptions(train=200, dev=0, test=0))

    assert "1 queries without a relevant passage in the collection" in str(error.value)
    assert "1 queries whose relevant passages are blank or above 918 tokens" in str(error.value)
    assert not list(tmp_path.iterdir())


def test_too_few_queries_of_which_none_is_left_out(source: dict[str, Path], tmp_path: Path) -> None:
    two = write_lines(tmp_path / "two.tsv", ["q10\tthe sea", "q11\tbread"])
    files = [source["passages"]], two, source["qrels"]
    with pytest.raises(TrainingError, match=r"train is 3; only 2 queries are left that can be used$"):
        make_far_relevant(*files, tmp_path / "out", options=FarRelevantOptions(train=3, dev=0, test=0))


def test_queries_with_the_same_passage_share_its_document_and_never_a_split_apart(
    source: dict[str, Path], tmp_path: Path
) -> None:
    files = [source["passages"]], source["queries"], source["qrels"]
    said = make_far_relevant(*files, tmp_path / "out", options=FarRelevantOptions(train=99, dev=0, test=0))

    qrels = read_qrels(tmp_path / "out" / "train" / "qrels.txt")
    assert qrels["q0"].keys() == qrels["q0b"].keys() == {"far-p0"}
    assert said["splits"]["train"]["documents"] == len({each for of in qrels.values() for each in of}) < 99
    assert set(said["splits"]) == {"train"}


def test_too_few_other_passages_are_an_error(source: dict[str, Path], tmp_path: Path) -> None:
    few = [each for each in read_json_lines(source["passages"]) if each.get("id")]
    passages = write_lines(tmp_path / "p.jsonl", few)
    options = FarRelevantOptions(train=99, dev=0, test=0)

    with pytest.raises(TrainingError, match="train: the filler passages are too few"):
        make_far_relevant([passages], source["queries"], source["qrels"], tmp_path / "out", options=options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": -1}, "train is -1; it must be at least 0"),
        ({"train": 0, "dev": 0, "test": 0}, "at least one split needs queries"),
        ({"before": 600, "longest": 601}, "longest is 601; it must be at least 602"),
        ({"candidates": 0}, "candidates is 0; it must be at least 1"),
        ({"min_grade": 0}, "min_grade is 0; it must be at least 1"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        FarRelevantOptions(**options)


def test_a_collection_that_cannot_be_read_twice_is_refused(source: dict[str, Path], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for passages in (Path("-"), tmp_path / "pipe"):
        with pytest.raises(InputError, match="it cannot be standard input or a pipe"):
            make_far_relevant([passages], source["queries"], source["qrels"], tmp_path / "out")


@settings(max_examples=40)
@given(st.integers(20, 200), st.integers(2, 400), st.integers(0, 10_000))
def test_bounds_hold_whatever_they_are(
    source: dict[str, Path], tokenizer: TextTokenizer, before: int, room: int, seed: int
) -> None:
    options = FarRelevantOptions(before=before, longest=before + room, seed=seed)
    ids = [f"n{n}" for n in range(60)]
    store = TextStore([source["passages"]], {"p7", *ids})

    document = DocumentMaker(store, ids, tokenizer, options).make("p7")

    own = tokenizer.count(store.text("p7"))
    if document is None:
        # There was hardly room for it.
        assert room < own + 200
        return
    assert document.facts["starts_at"] > before
    assert before + own <= tokenizer.count(document.text) <= before + room
    assert document.passages[document.facts["relevant"] - 1] == "p7"


def test_the_command_makes_it_and_keeps_what_stands_there(
    farrank: Farrank, source: dict[str, Path], made: Path, tmp_path: Path
) -> None:
    flags = [each for name, path in source.items() for each in (f"--{name}", path)]
    flags += ["--train", "40", "--dev", "6", "--test", "10", "--candidates", "12", "--out", tmp_path / "out"]
    outcome = farrank("data", "far-relevant", *flags)

    assert (outcome.exit_code, outcome.err) == (0, "")
    documents = len(read_json_lines(made / "train" / "collection.jsonl"))
    row = [str(tmp_path / "out" / "train"), str(documents), "40", "12"]
    assert outcome.out.splitlines()[1].split()[:4] == row
    assert folder_content(tmp_path / "out") == folder_content(made)
    again = farrank("data", "far-relevant", *flags)
    assert (again.exit_code, again.err.count("--overwrite replaces data made before")) == (2, 1)
    assert farrank("data", "far-relevant", *flags, "--overwrite").exit_code == 0
    (tmp_path / "out" / "data.json").unlink()
    kept = farrank("data", "far-relevant", *flags, "--overwrite")
    assert (kept.exit_code, kept.err.count("without a data.json it is kept")) == (2, 1)
