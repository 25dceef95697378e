import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from farrank_bench.reproduce.corpora import (
    ARTICLES,
    BIASED,
    CORPORA,
    DEMO,
    DL19,
    FAR,
    NFCORPUS,
    QUESTIONS,
    SQUAD,
    DataAbsent,
    read_corpus,
)
from farrank_training.data_sets.articles import BETWEEN
from farrank_trec import read_documents
from support.articles import write_articles


def write_lines(path: Path, lines: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as out:
        out.writelines(f"{line}\n" for line in lines)


def test_the_demo_needs_no_data_and_the_others_say_so(tmp_path: Path) -> None:
    demo = read_corpus(DEMO, None, tmp_path)
    assert demo.given is None
    assert demo.texts == []
    assert demo.judged.flags == ["--pydoc"]
    assert demo.judged.queries.keys() == demo.judged.qrels.keys()
    assert len(demo.documents()) > 300
    part = demo.first(3).judged
    assert list(part.queries) == list(demo.judged.queries)[:3]
    assert part.queries.keys() == part.qrels.keys()
    for name in set(CORPORA) - {DEMO}:
        with pytest.raises(DataAbsent, match=f"{name}: --data names no folder"):
            read_corpus(name, None, tmp_path)
        with pytest.raises(DataAbsent, match=f"{name}: .*gz: No such file"):
            read_corpus(name, tmp_path / "none", tmp_path)


def test_squads_articles_are_whole_and_a_question_wants_its_own(tmp_path: Path) -> None:
    passages, queries = [], []
    for number in range(ARTICLES):
        article = f"d{number:03}"
        # The second passage comes first in the file.
        for pos in (1, 0):
            pid, text = f"{article}_{pos}", f"passage {pos} of {article}"
            each = {"pid": pid, "split": "dev", "title": "T", "article": article, "pos": pos, "text": text}
            passages.append(json.dumps(each))
            asked = {"text": f"which is {pid}", "pid": pid, "answers": ["passage"], "answer_starts": [0]}
            queries.append(json.dumps({"qid": pid, "split": "dev", **asked}))
    write_lines(tmp_path / "squad" / "passages.jsonl.gz", passages)
    write_lines(tmp_path / "squad" / "queries.jsonl.gz", queries)
    corpus = read_corpus(SQUAD, tmp_path, tmp_path / "scratch")
    documents = {each.doc_id: each.text for each in read_documents([str(path) for path in corpus.texts])}
    assert len(documents) == ARTICLES
    assert documents["d007"] == "passage 0 of d007\n\npassage 1 of d007"
    assert corpus.documents() == documents
    assert len(corpus.judged.queries) == min(QUESTIONS, 2 * ARTICLES)
    for query_id, text in corpus.judged.queries.items():
        assert corpus.judged.qrels[query_id] == {text.removeprefix("which is ")[:4]: 1}


def test_far_and_biased_differ_only_in_the_place_of_the_relevant_passage(tmp_path: Path) -> None:
    (tmp_path / "squad").mkdir()
    write_articles(tmp_path / "squad", articles=18, passages=17, words=150)
    far, biased = (read_corpus(name, tmp_path, tmp_path / "scratch") for name in (FAR, BIASED))
    assert far.judged.queries == biased.judged.queries
    assert far.judged.qrels == biased.judged.qrels
    texts, first = {each.judged.name: each.documents() for each in (far, biased)}, {FAR: 0, BIASED: 0}
    assert set(texts[FAR]) >= {doc_id for judged in far.judged.qrels.values() for doc_id in judged}
    for doc_id, text in texts[BIASED].items():
        passages = {FAR: texts[FAR][doc_id].split(BETWEEN), BIASED: text.split(BETWEEN)}
        assert sorted(passages[FAR]) == sorted(passages[BIASED])
        for name, each in passages.items():
            first[name] += each[0] == passages[BIASED][0]
    assert first[BIASED] == len(texts[FAR]) > 3 * first[FAR]


def test_dl19_has_given_candidates_and_nfcorpus_an_index(tmp_path: Path) -> None:
    for folder, collection, queries, qrels in (
        ("nfcorpus", "corpus.jsonl.gz", "queries.jsonl.gz", "qrels.test.txt.gz"),
        ("trecdl19", "passages.jsonl.gz", "topics.dl19.tsv.gz", "qrels.dl19.txt.gz"),
    ):
        write_lines(tmp_path / folder / collection, ['{"docid": "d1", "text": "salt"}'])
        asked = '{"qid": "q1", "text": "a"}', '{"qid": "q2", "text": "b"}'
        write_lines(tmp_path / folder / queries, asked if folder == "nfcorpus" else ("q1\ta", "q2\tb"))
        write_lines(tmp_path / folder / qrels, ["q2 0 d1 1"])
    dl19 = read_corpus(DL19, tmp_path, tmp_path)
    # Each is read without the other.
    (tmp_path / "trecdl19" / "passages.jsonl.gz").unlink()
    (tmp_path / "trecdl19" / "topics.dl19.tsv.gz").unlink()
    nfcorpus = read_corpus(NFCORPUS, tmp_path, tmp_path)
    assert nfcorpus.given is None
    assert nfcorpus.judged.queries == {"q2": "b"}
    assert dl19.given == tmp_path / "trecdl19" / "run.dl19.bm25.trec.gz"
    assert dl19.texts == [tmp_path / "trecdl19" / "passages.jsonl.gz"]
    assert (nfcorpus.judged.name, dl19.judged.name) == (NFCORPUS, DL19)
