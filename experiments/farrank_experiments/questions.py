"""Questions to train on and to ask, with documents as arrangements of passages.

A chunk is a passage. So an encoder reads each pair of question and passage once, and its output serves every
document that holds the passage, at any place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from farrank_experiments.settings import Settings
from farrank_experiments.source_articles import MadeData, read_documents
from farrank_rankers.reader import Reader
from farrank_training.data_sets.articles import article_text, read_articles
from farrank_training.data_sets.lexical_index import LexicalIndex
from farrank_training.data_sets.window_documents import KINDS
from farrank_training.groups import drawn
from farrank_trec import read_qrels, read_queries, read_run
from farrank_trec.lines import json_object, numbered_lines

BIASED, FAR = KINDS
HARDER, NATURAL = "harder", "natural"

# A document: the indices of its passages in the question's pool, in order.
Arrangement = tuple[int, ...]


def at_place(place: int) -> str:
    """Name the condition that puts every candidate's relevant passage at chunk `place`, from 1."""
    return f"place {place}"


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """A question, all passages of its candidates, and the candidates in every condition.

    In the made collections, passage i of the pool is the relevant passage of candidate i. `relevant` is the
    candidate that answers the question, the same in all conditions.
    Shapes: each of `pool` (tokens,) int32.
    """

    query_id: str
    text: str
    pool: Sequence[np.ndarray]
    conditions: Mapping[str, Sequence[Arrangement]]
    relevant: int

    def first_passages(self) -> "AskedQuestion":
        """Keep only the first passages of documents, for a ranker that reads only first chunks."""
        firsts = sorted({each[0] for documents in self.conditions.values() for each in documents})
        places = {passage: place for place, passage in enumerate(firsts)}
        conditions = {
            name: [(places[each[0]],) for each in documents] for name, documents in self.conditions.items()
        }
        return replace(self, pool=[self.pool[each] for each in firsts], conditions=conditions)


class _Documents:
    """A split's documents of both kinds; each passage is tokenized once."""

    def __init__(self, data: MadeData, split: str, reader: Reader) -> None:
        self._reader = reader
        self._tokens: dict[str, np.ndarray] = {}
        self._documents: dict[str, dict[str, tuple[list[str], int]]] = {}
        for kind in KINDS:
            made = read_documents(data.split(kind, split))
            self._documents[kind] = {
                doc_id.removeprefix(f"{kind}-"): (passages, place) for doc_id, passages, place in made
            }
        files = data.split(BIASED, split)
        self.queries = read_queries(files.queries)
        self._qrels, self._run = read_qrels(files.qrels), read_run(files.candidates)

    def key(self, name: str) -> str:
        passages, place = self._documents[BIASED][name]
        return passages[place - 1]

    def others(self, kind: str, name: str) -> list[str]:
        """Give all passages but the relevant one."""
        passages, place = self._documents[kind][name]
        return [*passages[: place - 1], *passages[place:]]

    def place(self, kind: str, name: str) -> int:
        return self._documents[kind][name][1]

    def candidates(self, query_id: str) -> tuple[str, list[str]]:
        """Name the relevant document, and all candidates sorted by name."""
        (relevant,) = self._qrels[query_id]
        names = sorted(each.doc_id.removeprefix(f"{BIASED}-") for each in self._run[query_id])
        return relevant.removeprefix(f"{BIASED}-"), names

    def tokens(self, text: str) -> np.ndarray:
        if text not in self._tokens:
            self._tokens[text] = self._reader.read_document(text).ids
        return self._tokens[text]


def test_questions(data: MadeData, reader: Reader, settings: Settings) -> list[AskedQuestion]:
    """Take test questions with all their candidates: in Biased, Far, harder Far, and for some at every place.

    Documents of Far have as many passages as in Biased and the relevant passage where Far has it; the others
    are drawn from the question's own distractors (`Settings.distractors`). In harder Far the others are of
    the same article, as in Biased. With the relevant passage at a given place, all documents have the length
    of the longest.
    """
    documents = _Documents(data, "test", reader)
    chosen = _some(sorted(documents.queries), settings.test_questions, f"{settings.seed}/test")
    longest = settings.windows.most_chunks
    asked = []
    for number, query_id in enumerate(chosen):
        question, pool = _with_candidates(documents, query_id, settings)
        conditions = {**question.conditions, HARDER: pool.harder()}
        if number < settings.position_questions:
            for place in range(1, longest + 1):
                # The other passages are the same at every place.
                rng = Random(f"{settings.seed}/{query_id}/places")
                conditions[at_place(place)] = [
                    pool.arranged(index, longest, place, rng)
                    for index in range(len(question.conditions[BIASED]))
                ]
        asked.append(replace(question, conditions=conditions))
    return asked


def validation_questions(
    data: MadeData, reader: Reader, settings: Settings, query_ids: Sequence[str]
) -> list[AskedQuestion]:
    """Take questions about training articles with all their candidates, in Biased and in Far."""
    documents = _Documents(data, "train", reader)
    return [_with_candidates(documents, query_id, settings)[0] for query_id in query_ids]


def _with_candidates(
    documents: _Documents, query_id: str, settings: Settings
) -> tuple[AskedQuestion, "_Pool"]:
    relevant, names = documents.candidates(query_id)
    pool = _Pool(documents, names, settings)
    conditions = {BIASED: pool.biased(), FAR: pool.far(query_id)}
    text = documents.queries[query_id]
    return AskedQuestion(query_id, text, pool.tokens, conditions, names.index(relevant)), pool


def training_questions(
    data: MadeData, reader: Reader, settings: Settings, query_ids: Sequence[str]
) -> list[AskedQuestion]:
    """Take training questions, each with its relevant document and `negatives` others, in Biased and in Far.

    The relevant document is the first candidate.
    """
    documents = _Documents(data, "train", reader)
    asked = []
    for query_id in query_ids:
        relevant, names = documents.candidates(query_id)
        others = [name for name in names if name != relevant]
        places = drawn(min(settings.negatives, len(others)), len(others), settings.seed, query_id)
        pool = _Pool(documents, [relevant, *(others[place] for place in places)], settings)
        conditions = {BIASED: pool.biased(), FAR: pool.far(query_id)}
        asked.append(AskedQuestion(query_id, documents.queries[query_id], pool.tokens, conditions, 0))
    return asked


class _Pool:
    """The distinct passages of some candidates: the relevant ones first, in the candidates' order."""

    def __init__(self, documents: _Documents, names: Sequence[str], settings: Settings) -> None:
        self._documents, self._names, self._seed = documents, names, settings.seed
        self._places: dict[str, int] = {}
        self.tokens: list[np.ndarray] = []
        for place, name in enumerate(names):
            self._places.setdefault(documents.key(name), place)
            self.tokens.append(documents.tokens(documents.key(name)))
        far = dict.fromkeys(text for name in names for text in documents.others(FAR, name))
        least = settings.windows.most_chunks - 1
        shared = _some(list(far), max(settings.distractors, least), f"{settings.seed}/{'/'.join(names)}")
        self._distractors = [self._place(text) for text in shared]

    def biased(self) -> list[Arrangement]:
        """Arrange the documents as they were made."""
        return self._among_neighbours(BIASED)

    def harder(self) -> list[Arrangement]:
        """Put each relevant passage where Far has it, among the passages that it has in Biased."""
        return self._among_neighbours(FAR)

    def _among_neighbours(self, kind: str) -> list[Arrangement]:
        found = []
        for index, name in enumerate(self._names):
            others = [self._place(text) for text in self._documents.others(BIASED, name)]
            found.append(inserted(index, others, self._documents.place(kind, name)))
        return found

    def far(self, query_id: str) -> list[Arrangement]:
        """Put each relevant passage where Far has it, among distractors of the question."""
        found = []
        for index, name in enumerate(self._names):
            rng = Random(f"{self._seed}/{query_id}/{name}")
            chunks = len(self._documents.others(FAR, name)) + 1
            found.append(self.arranged(index, chunks, self._documents.place(FAR, name), rng))
        return found

    def arranged(self, index: int, chunks: int, place: int, rng: Random) -> Arrangement:
        """Put a relevant passage at a place among drawn distractors."""
        others = rng.sample(self._distractors, min(chunks - 1, len(self._distractors)))
        return inserted(index, others, place)

    def _place(self, text: str) -> int:
        if text not in self._places:
            self._places[text] = len(self.tokens)
            self.tokens.append(self._documents.tokens(text))
        return self._places[text]


def inserted(key: int, others: Sequence[int], place: int) -> Arrangement:
    """Put a passage at a place, counted from 1, among others that keep their order."""
    return (*others[: place - 1], key, *others[place - 1 :])


def natural_questions(data: MadeData, reader: Reader, settings: Settings) -> list[AskedQuestion]:
    """Take questions about whole test articles; the candidates are BM25's, always with the right article.

    Articles are cut into windows without regard to passages; the first `Settings.natural_chunks` are read.
    """
    split = settings.windows.test_split
    articles = {
        name: passages
        for name, passages in read_articles(data.articles).items()
        if passages[0].split == split
    }
    names = sorted(articles)
    article_of = {each.passage_id: name for name, passages in articles.items() for each in passages}
    texts = {name: article_text(articles[name]) for name in names}
    index = LexicalIndex(texts[name] for name in names)
    chunks = {
        name: [
            chunk.ids
            for chunk in reader.split(
                reader.read_document(texts[name], settings.natural_chunks), settings.natural_chunks
            )
        ]
        for name in names
    }
    lines = (json_object(where, text) for where, text in numbered_lines(data.questions))
    about = {
        str(line["qid"]): (str(line["text"]), article_of[line["pid"]])
        for line in lines
        if line["pid"] in article_of
    }
    asked = []
    for query_id in _some(sorted(about), settings.natural_questions, f"{settings.seed}/natural"):
        text, own = about[query_id]
        best = [names[place] for place, _ in index.best(text, settings.natural_candidates)]
        if own not in best:
            best = [*best[: settings.natural_candidates - 1], own]
        best.sort()
        pool: list[np.ndarray] = []
        arranged = []
        for name in best:
            arranged.append(tuple(range(len(pool), len(pool) + len(chunks[name]))))
            pool += chunks[name]
        asked.append(AskedQuestion(query_id, text, pool, {NATURAL: arranged}, best.index(own)))
    return asked


def _some(values: list[str], count: int, key: str) -> list[str]:
    """Draw `count` of the values, or all if there are fewer."""
    return Random(key).sample(values, min(count, len(values)))
