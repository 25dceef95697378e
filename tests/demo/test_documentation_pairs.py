"""Summaries become queries, and documents no longer contain them."""

import importlib
import json
import pydoc
import re
from pathlib import Path

import pytest

from farrank_demo.documentation_pairs import (
    MAX_RELEVANT,
    PairFiles,
    Pairs,
    make_pairs,
    summaries,
    write_candidates,
    write_texts,
)
from farrank_indexes.document import IndexDocument
from farrank_indexes.index_builder import build_index
from farrank_training.training_set import judged_set
from farrank_trec import read_qrels, read_queries, read_run

# Functions and classes, in Python and in C, of packages for training and for validation.
MODULES = (
    "bisect",
    "calendar",
    "heapq",
    "html.parser",
    "pprint",
    "queue",
    "sched",
    "shutil",
    "textwrap",
    "zlib",
)

# Lines that end in white space end in ~ here.
RENDERED = """\
Python Library Documentation: module shop

NAME
    shop - All that is sold.

CLASSES
    builtins.object
        Basket
        Plain
   ~
    class Basket(builtins.object)
     |  Basket(things, /)
     | ~
     |  Carry what a customer has chosen
     |  until it is paid. Then forget it.
     | ~
     |  Methods defined here:
     | ~
     |  add(self, thing)
     |      Add one thing to those that are here.
   ~
    class Plain(builtins.object)
     |  Method resolution order:
     |      Plain
     |      builtins.object

FUNCTIONS
    _hide(thing)
        Hide a thing where nobody finds it.
   ~
    bare(thing)
   ~
    buy = sell(thing, price=1)
        sell(thing) -> money
       ~
        Give a thing away, e.g. for money. Prices
        are fair.
   ~
    async open_shop(door, *, key)
        Let the customers in as soon
        as the key is found

DATA
    lend(thing)
        This is no function but a value.
""".replace("~", " ")


@pytest.fixture(scope="module")
def documents() -> dict[str, str]:
    return {name: pydoc.plain(pydoc.render_doc(importlib.import_module(name))) for name in MODULES}


@pytest.fixture(scope="module")
def pairs(documents: dict[str, str]) -> Pairs:
    return make_pairs(documents, per_document=4)


def joined(text: str) -> str:
    return " ".join(re.split(r"[\s|]+", text))


def test_a_summary_is_the_first_sentence_of_a_public_function_or_class() -> None:
    assert dict(summaries(RENDERED)) == {
        "Basket": "Carry what a customer has chosen until it is paid.",
        "buy": "Give a thing away, e.g. for money.",
        "open_shop": "Let the customers in as soon as the key is found",
    }


def test_summaries_are_those_of_the_module() -> None:
    import textwrap

    found = dict(summaries(pydoc.plain(pydoc.render_doc(textwrap))))
    assert found["dedent"] == "Remove any common leading whitespace from every line in `text`."
    assert len(found) > 3
    assert found.keys() <= vars(textwrap).keys()


def test_queries_have_relevant_documents_that_lack_the_sentence(
    pairs: Pairs, documents: dict[str, str]
) -> None:
    queries = {**pairs.train, **pairs.dev}
    assert len(queries) > 20
    assert queries.keys() == pairs.qrels.keys()
    for query_id, sentence in queries.items():
        assert query_id.rpartition(".")[0] in pairs.qrels[query_id]
        assert len(pairs.qrels[query_id]) <= MAX_RELEVANT
        for doc_id in documents:
            assert (sentence in joined(documents[doc_id])) == (doc_id in pairs.qrels[query_id])
            assert sentence not in joined(pairs.documents[doc_id])


def test_only_the_sentences_are_taken_out(pairs: Pairs, documents: dict[str, str]) -> None:
    queries = {**pairs.train, **pairs.dev}
    for doc_id, text in documents.items():
        asking = [queries[query_id] for query_id, judged in pairs.qrels.items() if doc_id in judged]
        before, after = joined(text).split(), joined(pairs.documents[doc_id]).split()
        taken = sum(len(each.split()) * joined(text).count(each) for each in asking)
        assert len(before) - len(after) == taken


def test_a_package_is_for_training_or_for_validation(pairs: Pairs) -> None:
    packages = [
        {doc_id.partition(".")[0] for query_id in queries for doc_id in pairs.qrels[query_id]}
        for queries in (pairs.train, pairs.dev)
    ]
    assert all(packages)
    assert packages[0].isdisjoint(packages[1])


def test_a_document_gives_so_many_queries_at_most(documents: dict[str, str]) -> None:
    for most in (1, 3):
        made = make_pairs(documents, per_document=most)
        asked = [query_id.rpartition(".")[0] for query_id in (*made.train, *made.dev)]
        assert max(map(asked.count, asked)) == most


def test_a_sentence_of_many_documents_or_of_both_splits_is_no_query() -> None:
    many = {f"{package}.part": RENDERED for package in ("shop", "shop.a", "shop.b", "shop.c", "shop.d")}
    assert not make_pairs(many).qrels
    # The split depends on the package's name.
    splits = {name: bool(make_pairs({name: RENDERED}).dev) for name in MODULES}
    one, other = (next(name for name in MODULES if splits[name] is split) for split in (True, False))
    assert len(make_pairs({one: RENDERED}).qrels) == 3
    assert not make_pairs({one: RENDERED, other: RENDERED}).qrels


@pytest.fixture(scope="module")
def files(pairs: Pairs, tmp_path_factory: pytest.TempPathFactory) -> PairFiles:
    files = PairFiles(tmp_path_factory.mktemp("pairs"))
    write_texts(pairs, files)
    index = files.folder / "index"
    build_index((IndexDocument(doc_id, text) for doc_id, text in pairs.documents.items()), index)
    write_candidates(pairs, index, files, k=5)
    return files


def test_the_files_are_what_training_reads(files: PairFiles, pairs: Pairs) -> None:
    assert read_queries(files.train) == pairs.train
    assert read_queries(files.dev) == pairs.dev
    assert read_qrels(files.qrels) == pairs.qrels
    lines = map(json.loads, files.collection.read_text(encoding="utf-8").splitlines())
    assert {line["id"]: line["text"] for line in lines} == pairs.documents

    groups = judged_set(files.train, files.qrels, files.candidates, [files.collection])
    found = [groups.group(index, epoch=0) for index in range(len(groups))]
    assert len(found) > 10
    for group in found:
        relevant = {pairs.documents[doc_id] for doc_id in pairs.qrels[group.query_id]}
        assert group.query == pairs.train[group.query_id]
        assert group.documents[0] in relevant
        assert relevant.isdisjoint(group.documents[1:])


def test_candidates_are_what_the_index_finds_best(files: PairFiles, pairs: Pairs) -> None:
    run = read_run(files.candidates)
    assert list(run) == [*pairs.train, *pairs.dev]
    assert max(len(found) for found in run.values()) == 5
    first = [run[query_id][0].doc_id in judged for query_id, judged in pairs.qrels.items()]
    assert sum(first) > len(first) / 2


def test_the_same_documents_give_the_same_bytes(
    files: PairFiles, documents: dict[str, str], tmp_path: Path
) -> None:
    again, made = PairFiles(tmp_path), make_pairs(documents, per_document=4)
    write_texts(made, again)
    write_candidates(made, files.folder / "index", again, k=5)
    for name in ("collection", "train", "dev", "qrels", "candidates"):
        assert getattr(again, name).read_bytes() == getattr(files, name).read_bytes()
