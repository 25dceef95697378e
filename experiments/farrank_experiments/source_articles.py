"""The data step: make Biased, Far and the encoder's training passages from SQuAD's articles."""

import gzip
import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from farrank_experiments.settings import Settings
from farrank_training.data_sets.articles import BETWEEN
from farrank_training.data_sets.made_data import MadeSplit
from farrank_training.data_sets.window_documents import make_window_documents
from farrank_training.errors import TrainingError
from farrank_trec import rank, read_queries, read_run, write_run
from farrank_trec.lines import json_object, numbered_lines

PASSAGES, QUESTIONS = "passages.jsonl.gz", "queries.jsonl.gz"
_WINDOWS, _KEYS, _KEY_RUN = "windows", "key-passages.jsonl", "key-passages.trec"


class QuestionIds(NamedTuple):
    """Training questions: of the passage ranker, of the rankers, and those that are held out."""

    passages: list[str]
    training: list[str]
    validation: list[str]


class MadeData:
    """The files in the data step's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def split(self, kind: str, split: str) -> MadeSplit:
        """Give the files of a split of Biased or Far."""
        return MadeSplit(self.folder / _WINDOWS / kind / split)

    @property
    def key_passages(self) -> Path:
        """The relevant passages of Biased's training documents, with the documents' ids."""
        return self.folder / _KEYS

    @property
    def key_run(self) -> Path:
        """The candidates of these passages: BM25's, and as many random ones."""
        return self.folder / _KEY_RUN

    @property
    def articles(self) -> Path:
        """The articles' passages, uncut."""
        return self.folder / PASSAGES

    @property
    def questions(self) -> Path:
        """All questions about the articles."""
        return self.folder / QUESTIONS

    def question_ids(self, settings: Settings) -> QuestionIds:
        """Divide the training questions among the passage ranker and the rankers of documents.

        Raises: TrainingError if there are too few.
        """
        known = sorted(read_queries(self.split("biased", "train").queries))
        sizes = settings.passage_questions, settings.triples, settings.validation_questions
        if len(known) < sum(sizes):
            raise TrainingError(
                f"passage_questions ({sizes[0]:,}), triples ({sizes[1]:,}) and validation_questions "
                f"({sizes[2]:,}) take {sum(sizes):,} questions; the articles have {len(known):,} to train "
                "with"
            )
        Random(f"{settings.seed}/triples").shuffle(known)
        left = iter(known)
        return QuestionIds(*(list(islice(left, size)) for size in sizes))


def make_data(squad: Path, settings: Settings, folder: Path) -> None:
    """Make both collections and the passages; this needs no model.

    Raises: InputError if a file is missing or malformed; TrainingError if there are too few articles.
    """
    made = MadeData(folder)
    chosen = _copied_articles(squad / PASSAGES, made.articles, settings.articles)
    _copied_lines(squad / QUESTIONS, made.questions, lambda line: line.get("pid") in chosen)
    make_window_documents(
        made.articles,
        made.questions,
        folder / _WINDOWS,
        tokenizer=settings.backbone,
        options=settings.windows,
        overwrite=True,
    )
    _write_key_passages(made, settings)


def _copied_articles(source: Path, target: Path, most: int | None) -> set[str]:
    """Copy the passages of the first articles of each split; return their ids."""
    names: dict[str, set[str]] = {}

    def wanted(line: dict[str, Any]) -> bool:
        of_split = names.setdefault(str(line.get("split")), set())
        if most is None or len(of_split) < most:
            of_split.add(str(line.get("article")))
        return str(line.get("article")) in of_split

    return {str(line.get("pid")) for line in _copied_lines(source, target, wanted)}


def _copied_lines(
    source: Path, target: Path, wanted: Callable[[dict[str, Any]], bool]
) -> list[dict[str, Any]]:
    kept = [line for where, text in numbered_lines(source) if wanted(line := json_object(where, text))]
    # Without a timestamp in the file the same lines give the same bytes.
    with target.open("wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
        for line in kept:
            packed.write((json.dumps(line, ensure_ascii=False) + "\n").encode())
    return kept


def _write_key_passages(made: MadeData, settings: Settings) -> None:
    split = made.split("biased", "train")
    doc_ids = []
    with made.key_passages.open("w", encoding="utf-8") as out:
        for doc_id, passages, place in read_documents(split):
            doc_ids.append(doc_id)
            out.write(json.dumps({"id": doc_id, "text": passages[place - 1]}, ensure_ascii=False) + "\n")
    run = {}
    for query_id, ranked in read_run(split.candidates).items():
        found = {each.doc_id: each.score for each in ranked}
        rng = Random(f"{settings.seed}/others/{query_id}")
        # Far's documents consist of passages about other subjects, so training must show these, too.
        others = rng.sample(doc_ids, min(len(found), len(doc_ids)))
        run[query_id] = rank(query_id, {**dict.fromkeys(others, 0.0), **found}.items())
    write_run(made.key_run, run, "bm25-and-others")


def read_documents(split: MadeSplit) -> Iterator[tuple[str, list[str], int]]:
    """Read a split's documents: the id, the passages' texts, and the relevant one's place from 1."""
    for where, text in numbered_lines(split.collection):
        line = json_object(where, text)
        yield line["id"], line["text"].split(BETWEEN), line["relevant"]
