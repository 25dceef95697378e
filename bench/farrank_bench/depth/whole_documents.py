"""Questions whose candidates are long documents, in three collections.

articles: SQuAD's test articles, whole. far: documents of passages of one article, the relevant one anywhere
among them. demo: Python's documentation, with the demo's judged questions.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TypeVar

from farrank_bench.fidelity import find_candidates
from farrank_demo.questions import load_qrels, load_questions
from farrank_experiments.source_articles import PASSAGES, QUESTIONS, read_documents
from farrank_loadtest.kept_files import read_kept
from farrank_training.data_sets.articles import BETWEEN, article_text, read_articles
from farrank_training.data_sets.lexical_index import LexicalIndex
from farrank_training.data_sets.made_data import MadeSplit
from farrank_training.data_sets.window_documents import WindowOptions, make_window_documents
from farrank_trec import rank, read_qrels, read_queries, read_run, write_qrels, write_queries, write_run
from farrank_trec.lines import json_object, numbered_lines

T = TypeVar("T")

TEST_SPLIT = "dev"
# The articles of Far's own distractors and dev split, which are not used here.
OTHER_ARTICLES = 4


@dataclass(frozen=True, slots=True)
class JudgedQuestion:
    """A question, its candidates' ids, and the grades of all judged documents, candidates or not."""

    query_id: str
    text: str
    candidates: tuple[str, ...]
    grades: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class WholeDocuments:
    """A collection's questions, in random order, and the texts of all candidates by id.

    `measure` is that of `replay.MEASURES`.
    """

    measure: str
    questions: tuple[JudgedQuestion, ...]
    texts: Mapping[str, str]


def kept_collection(path: Path, make: Callable[[], WholeDocuments]) -> WholeDocuments:
    """Read a collection from a file, or make it and write the file.

    Raises: InputError if the file is something else; as `make`.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(asdict(make())), encoding="utf-8")
        unfinished.replace(path)
    return read_kept(path, WholeDocuments, "farrank_bench.depth")


def write_set(collection: WholeDocuments, questions: int, folder: Path) -> None:
    """Write the first questions with their candidates as the files that `farrank loadtest` reads.

    Raises: InputError if a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    some = collection.questions[:questions]
    write_qrels(folder / "qrels.txt", {each.query_id: dict(each.grades) for each in some})
    write_queries(folder / "queries.tsv", {each.query_id: each.text for each in some})
    # Scores that keep the candidates' order.
    run = {
        each.query_id: rank(
            each.query_id, [(doc_id, -float(place)) for place, doc_id in enumerate(each.candidates)]
        )
        for each in some
    }
    write_run(folder / "candidates.trec", run, tag="candidates")
    ids = dict.fromkeys(doc_id for each in some for doc_id in each.candidates)
    lines = (json.dumps({"id": doc_id, "text": collection.texts[doc_id]}) + "\n" for doc_id in ids)
    (folder / "collection.jsonl").write_text("".join(lines), encoding="utf-8")


def articles(squad: Path, questions: int, candidates: int, seed: int) -> WholeDocuments:
    """Take whole test articles, 50 chunks each; BM25 finds a question's candidates among them.

    The article with the answer is always a candidate. Raises: InputError if a file is missing or malformed.
    """
    read = read_articles(squad / PASSAGES)
    texts = {
        name: article_text(passages) for name, passages in read.items() if passages[0].split == TEST_SPLIT
    }
    article_of = {each.passage_id: name for name in texts for each in read[name]}
    names, index = sorted(texts), LexicalIndex(texts[name] for name in sorted(texts))
    lines = (json_object(where, line) for where, line in numbered_lines(squad / QUESTIONS))
    asked = sorted(
        (str(line["qid"]), str(line["text"]), article_of[line["pid"]])
        for line in lines
        if line["pid"] in article_of
    )
    found = []
    for query_id, text, own in _shuffled(asked, seed)[:questions]:
        best = [names[place] for place, _ in index.best(text, candidates)]
        if own not in best:
            best = [*best[: candidates - 1], own]
        found.append(JudgedQuestion(query_id, text, tuple(sorted(best)), {own: 1}))
    return WholeDocuments("MRR", tuple(found), texts)


def far(squad: Path, questions: int, candidates: int, seed: int, *, anywhere: bool = True) -> WholeDocuments:
    """Make documents of 8 to 16 passages of one article each, the relevant one at any place among them.

    A passage is a chunk of 128 tokens. With `anywhere=False` the relevant passage stays where it is in
    Biased, mostly first. In the Far of `farrank data window` the other passages are of other
    articles, so that the words of a question alone find the relevant one. The candidates are those whose
    relevant passages BM25 ranks best.
    Raises: as `make_window_documents`.
    """
    options = WindowOptions(
        seed,
        fewest_chunks=8,
        most_chunks=16,
        candidates=candidates,
        distractor_articles=OTHER_ARTICLES,
        dev_articles=OTHER_ARTICLES,
        test_split=TEST_SPLIT,
        train=1,
        dev=1,
        test=questions,
    )
    with TemporaryDirectory() as folder:
        make_window_documents(
            squad / PASSAGES, squad / QUESTIONS, Path(folder), options=options, overwrite=True
        )
        made = MadeSplit(Path(folder) / "biased" / "test")
        texts = {
            doc_id: BETWEEN.join(_anywhere(passages, place, f"{seed}/{doc_id}") if anywhere else passages)
            for doc_id, passages, place in read_documents(made)
        }
        qrels, run = read_qrels(made.qrels), read_run(made.candidates)
        asked = [
            JudgedQuestion(
                query_id, text, tuple(sorted(each.doc_id for each in run[query_id])), qrels[query_id]
            )
            for query_id, text in sorted(read_queries(made.queries).items())
        ]
    return WholeDocuments("MRR", tuple(_shuffled(asked, seed)), texts)


def _anywhere(passages: Sequence[str], place: int, key: str) -> list[str]:
    """Move the passage at a place, from 1, to a place at which each of them is equally probable."""
    others = [*passages[: place - 1], *passages[place:]]
    others.insert(Random(key).randrange(len(passages)), passages[place - 1])
    return others


def demo(index: Path, candidates: int, seed: int) -> WholeDocuments:
    """Take the demo's judged questions with BM25's first candidates; the index is built if it is missing.

    Questions without a candidate are left out.
    Raises: CalledProcessError if it cannot be built.
    """
    if not index.exists():
        command = [sys.executable, "-m", "farrank_cli", "index", "--pydoc", "--out", str(index)]
        subprocess.run(command, check=True)
    asked, qrels = load_questions(), load_qrels()
    found = {
        query_id: every[:candidates] for query_id, every in asyncio.run(find_candidates(index, asked)).items()
    }
    texts = {each.doc_id: each.text for every in found.values() for each in every}
    judged = [
        JudgedQuestion(
            each.query_id,
            each.text,
            tuple(candidate.doc_id for candidate in found[each.query_id]),
            qrels[each.query_id],
        )
        for each in asked
        if found[each.query_id]
    ]
    return WholeDocuments("nDCG@10", tuple(_shuffled(judged, seed)), texts)


def _shuffled(values: Sequence[T], seed: int) -> list[T]:
    """Shuffle, so that the first questions are a sample of all."""
    return Random(f"{seed}/questions").sample(values, len(values))
