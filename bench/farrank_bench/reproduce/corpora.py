"""The judged collections: the demo, and those of a folder of public data."""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from farrank_bench.depth.whole_documents import far, kept_collection
from farrank_bench.evidence.articles import read_articles
from farrank_bench.first_stages import JudgedCollection, demo, dl19, nfcorpus
from farrank_indexes.pydoc_corpus import read_pydoc
from farrank_trec import Qrels, read_documents
from farrank_trec.errors import InputError

DEMO, SQUAD, FAR, BIASED, DL19, NFCORPUS = "demo", "squad", "far", "biased", "dl19", "nfcorpus"
CORPORA = (DEMO, SQUAD, FAR, BIASED, DL19, NFCORPUS)
SEED = 1
# SQuAD's development set has 48 articles and 10,570 questions.
ARTICLES = 48
# The most questions of a collection. The demo has a few more, and has them all.
QUESTIONS = 100
# Candidates of Far's questions by BM25, among which its documents are chosen; the first stage finds others.
_FAR_CANDIDATES = 10
_GIVEN = "run.dl19.bm25.trec.gz"


class DataAbsent(RuntimeError):
    """A collection's file is not there or cannot be read; the message names it."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """A collection with judged questions.

    `given` is a first stage's run, whose candidates are sent as texts. Without one the server searches an
    index.
    """

    judged: JudgedCollection
    given: Path | None = None

    @property
    def texts(self) -> list[Path]:
        """The JSON lines of the documents' texts; the demo's corpus has none."""
        return [Path(each) for each in self.judged.flags if not each.startswith("--")]

    def documents(self) -> dict[str, str]:
        """Read the texts of all documents by id."""
        read = read_documents(list(map(str, self.texts))) if self.texts else read_pydoc()
        return {each.doc_id: each.text for each in read}

    def first(self, questions: int) -> "Corpus":
        """Keep the first questions."""
        queries = dict(list(self.judged.queries.items())[:questions])
        qrels = {query_id: self.judged.qrels[query_id] for query_id in queries}
        return replace(self, judged=replace(self.judged, queries=queries, qrels=qrels))


def read_corpus(name: str, data: Path | None, scratch: Path) -> Corpus:
    """Read one of CORPORA.

    `data` has squad/, trecdl19/ and nfcorpus/. Documents that are made of SQuAD's are written to `scratch`. A
    question's only relevant document is its article, whole, or in Far and Biased the document with its
    passage.
    Raises: DataAbsent.
    """
    if name == DEMO:
        return Corpus(demo())
    if data is None:
        raise DataAbsent(f"{name}: --data names no folder")
    lines = scratch / f"{name}.jsonl"
    try:
        if name == SQUAD:
            return Corpus(_articles(data / "squad", lines))
        if name == NFCORPUS:
            return Corpus(_drawn(nfcorpus(data / "nfcorpus"), name))
        if name == DL19:
            return Corpus(_drawn(dl19(data / "trecdl19"), name), data / "trecdl19" / _GIVEN)
        made = kept_collection(
            scratch / f"{name}.json",
            lambda: far(data / "squad", QUESTIONS, _FAR_CANDIDATES, SEED, anywhere=name == FAR),
        )
    except InputError as error:
        raise DataAbsent(f"{name}: {error}") from error
    except OSError as error:
        raise DataAbsent(f"{name}: {error.filename}: {error.strerror}") from error
    queries = {each.query_id: each.text for each in made.questions}
    qrels = {each.query_id: dict(each.grades) for each in made.questions}
    return Corpus(_written(name, lines, made.texts, queries, qrels))


def _articles(folder: Path, lines: Path) -> JudgedCollection:
    texts, questions = read_articles(folder, ARTICLES, QUESTIONS, SEED)
    by_id = {f"q{number:03}": each for number, each in enumerate(questions, start=1)}
    asked = {query_id: each.text for query_id, each in by_id.items()}
    return _written(
        SQUAD, lines, texts, asked, {query_id: {each.article: 1} for query_id, each in by_id.items()}
    )


def _written(
    name: str, lines: Path, texts: Mapping[str, str], queries: Mapping[str, str], qrels: Qrels
) -> JudgedCollection:
    lines.parent.mkdir(parents=True, exist_ok=True)
    with lines.open("w", encoding="utf-8") as out:
        for doc_id, text in texts.items():
            out.write(json.dumps({"id": doc_id, "text": text}) + "\n")
    return JudgedCollection(name, [str(lines)], queries, qrels)


def _drawn(judged: JudgedCollection, name: str) -> JudgedCollection:
    """Draw QUESTIONS of the questions, or keep them all."""
    ids = sorted(judged.queries)
    drawn = sorted(random.Random(SEED).sample(ids, min(QUESTIONS, len(ids))))
    return JudgedCollection(
        name,
        judged.flags,
        {query_id: judged.queries[query_id] for query_id in drawn},
        {query_id: judged.qrels[query_id] for query_id in drawn},
    )
