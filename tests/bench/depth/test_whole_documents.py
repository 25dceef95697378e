"""The collections: candidates, judgements, and where the relevant passage lies."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from farrank_bench.depth.__main__ import main
from farrank_bench.depth.whole_documents import WholeDocuments, articles, demo, far, kept_collection
from farrank_bench.fidelity import find_candidates
from farrank_demo.questions import load_qrels, load_questions
from farrank_loadtest.workloads.recorded import read_candidates
from farrank_training.data_sets.articles import BETWEEN, article_text, read_articles
from farrank_trec import read_qrels
from farrank_trec.errors import InputError
from support.articles import write_articles
from support.kept_index import kept_index


@pytest.fixture(scope="module")
def squad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_articles(tmp_path_factory.mktemp("squad"), articles=18, passages=17, words=150)


def test_articles_are_whole_and_the_answering_one_is_always_a_candidate(squad: Path) -> None:
    made = articles(squad, questions=20, candidates=3, seed=1)
    read = read_articles(squad / "passages.jsonl.gz")
    assert made.texts == {name: article_text(of) for name, of in read.items() if name.startswith("d")}
    assert len(made.questions) == 20
    assert len({each.query_id for each in made.questions}) == 20
    for each in made.questions:
        assert each.grades == {each.query_id[:4]: 1}
        assert each.query_id[:4] in each.candidates
        assert len(set(each.candidates)) == 3


def test_more_questions_keep_the_first_ones(squad: Path) -> None:
    some, more = (articles(squad, questions=n, candidates=3, seed=1).questions for n in (5, 9))
    assert more[:5] == some
    assert articles(squad, questions=5, candidates=3, seed=2).questions != some


def test_far_puts_the_relevant_passage_anywhere_among_those_of_its_article(squad: Path) -> None:
    made = far(squad, questions=60, candidates=4, seed=1)
    read = read_articles(squad / "passages.jsonl.gz")
    places: Counter[float] = Counter()
    for doc_id, text in made.texts.items():
        passages = text.split(BETWEEN)
        assert 8 <= len(passages) <= 16
        article = doc_id.removeprefix("far-").removeprefix("biased-")[:4]
        sources = {" ".join(each.text.split()): each.passage_id for each in read[article]}
        found = [next(name for source, name in sources.items() if each in source) for each in passages]
        assert len(set(found)) == len(found)
        places[2 * found.index(doc_id.split("-", 1)[1]) // len(passages)] += 1
    # In Biased six of seven relevant passages are first.
    assert min(places[0], places[1]) > len(made.texts) / 4
    for each in made.questions:
        (relevant,) = each.grades
        assert relevant in each.candidates
        assert set(each.candidates) <= made.texts.keys()


def test_the_demo_keeps_the_first_stages_order_and_grades_of_all_judged_documents(tmp_path: Path) -> None:
    texts = {"csv": "read a csv file row by row", "json": "decode json from a file", "os": "remove a file"}
    index = kept_index(tmp_path / "pydoc", texts, [])
    made = demo(index, candidates=2, seed=3)
    found = asyncio.run(find_candidates(index, load_questions()))
    assert made.measure == "nDCG@10"
    assert made.texts.items() <= texts.items()
    assert 0 < len(made.questions) <= 113
    for each in made.questions:
        assert each.grades == load_qrels()[each.query_id]
        assert each.candidates == tuple(candidate.doc_id for candidate in found[each.query_id][:2]) != ()


def test_load_tests_read_a_collections_set(squad: Path, tmp_path: Path) -> None:
    flags = ["--squad", str(squad), "--collections", "articles", "--article-candidates", "3", "--seed", "1"]
    assert (
        main([*flags, "--questions", "5", "--cache", str(tmp_path / "c"), "--sets", str(tmp_path / "s")]) == 0
    )

    folder, made = tmp_path / "s" / "articles", articles(squad, questions=5, candidates=3, seed=1)
    read = read_candidates(
        folder / "candidates.trec", folder / "queries.tsv", [folder / "collection.jsonl"], depth=3
    )
    assert read_qrels(folder / "qrels.txt") == {each.query_id: each.grades for each in made.questions}
    for call, each in zip(read.calls, made.questions, strict=True):
        assert (call.query_id, call.query) == (each.query_id, " ".join(each.text.split()))
        assert tuple(document.doc_id for document in call.documents) == each.candidates
        assert list(call.texts) == [made.texts[doc_id] for doc_id in each.candidates]


def test_a_collection_is_made_once(tmp_path: Path, squad: Path) -> None:
    path = tmp_path / "made" / "collection.json"
    made = kept_collection(path, lambda: articles(squad, questions=3, candidates=2, seed=1))

    def never() -> WholeDocuments:
        raise AssertionError("made again")

    assert kept_collection(path, never) == made
    assert [each.name for each in path.parent.iterdir()] == ["collection.json"]
    path.write_text("{}")
    with pytest.raises(InputError, match="not written by `farrank_bench"):
        kept_collection(path, never)
