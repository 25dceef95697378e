"""The judged collections: the demo, and those of a folder of public data."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from farrank_bench.evidence.articles import read_articles
from farrank_bench.first_stages import JudgedCollection, test_sets
from farrank_trec.errors import InputError

DEMO, SQUAD, DL19, NFCORPUS = "demo", "squad", "dl19", "nfcorpus"
CORPORA = (DEMO, SQUAD, DL19, NFCORPUS)
SEED = 1
# SQuAD's development set has 48 articles and 10,570 questions.
ARTICLES, QUESTIONS = 48, 200
_TEST_SETS = {DEMO: "demo", DL19: "DL19", NFCORPUS: "NFCorpus"}
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


def read_corpus(name: str, data: Path | None, scratch: Path) -> Corpus:
    """Read one of CORPORA.

    `data` has squad/, trecdl19/ and nfcorpus/. SQuAD's articles are written to `scratch`, whole: a question's
    only relevant document is its article.
    Raises: DataAbsent.
    """
    if name != DEMO and data is None:
        raise DataAbsent(f"{name}: --data names no folder")
    try:
        if name == SQUAD:
            assert data is not None
            return Corpus(_articles(data / "squad", scratch / "squad-articles.jsonl"))
        title = _TEST_SETS[name]
        judged = next(each for each in test_sets(data) if each.name == title)
        given = data / "trecdl19" / _GIVEN if data is not None and name == DL19 else None
        return Corpus(replace(judged, name=name), given)
    except InputError as error:
        raise DataAbsent(f"{name}: {error}") from error
    except OSError as error:
        raise DataAbsent(f"{name}: {error.filename}: {error.strerror}") from error


def _articles(folder: Path, lines: Path) -> JudgedCollection:
    texts, questions = read_articles(folder, ARTICLES, QUESTIONS, SEED)
    lines.parent.mkdir(parents=True, exist_ok=True)
    with lines.open("w", encoding="utf-8") as out:
        for doc_id, text in texts.items():
            out.write(json.dumps({"id": doc_id, "text": text}) + "\n")
    by_id = {f"q{number:03}": each for number, each in enumerate(questions, start=1)}
    return JudgedCollection(
        SQUAD,
        [str(lines)],
        {query_id: each.text for query_id, each in by_id.items()},
        {query_id: {each.article: 1} for query_id, each in by_id.items()},
    )
