"""Training data from documentation: a function's summary is the query, its module's document answers it.

A query is the sentence that sums up a function or a class. It is removed from every document, so that the
ranker must match the rest by meaning: the function's name, its parameters, the remaining text. The files are
those that `farrank train` reads.
"""

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from farrank_first_stage.bm25 import Bm25Config
from farrank_first_stage.config import FirstStageConfig
from farrank_first_stage.stages import open_first_stages
from farrank_trec import Qrels, Run, rank, write_qrels, write_queries, write_run

# The most sentences of a document: modules differ in size by a factor of a hundred.
PER_DOCUMENT = 8
MIN_WORDS, MAX_WORDS = 5, 32
# A sentence that occurs in more documents identifies none of them.
MAX_RELEVANT = 3
# About one package in this number is held back for validation.
DEV_OF = 16

_SECTION = re.compile(r"[A-Z][A-Z ]*$")
_FUNCTION = re.compile(r" {4}(?:async )?([A-Za-z]\w*)(?: = \w+)?\(")
# A call signature, with which the text of every class and of functions written in C begins.
_CALL = re.compile(r"\w+\(")
_CLASS = re.compile(r" {4}class ([A-Za-z]\w*)")
# The margin of each line of a function's text, and of a class's.
_OF_FUNCTION, _OF_CLASS = " " * 8, "     |  "
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
# Between the words of a sentence: line ends, indentation, the bar in a class's margin.
_GAP = r"[\s|]+"


def summaries(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and summary sentence of each public function and class of a module, as pydoc renders them.

    Methods are left out: most of their sentences mean little without their class.
    """
    lines = text.split("\n")
    section = ""
    for at, line in enumerate(lines):
        if _SECTION.match(line):
            section = line
        named, margin = None, ""
        if section == "FUNCTIONS":
            named, margin = _FUNCTION.match(line), _OF_FUNCTION
        elif section == "CLASSES":
            named, margin = _CLASS.match(line), _OF_CLASS
        if named is not None:
            sentence = _SENTENCE_END.split(_first_paragraph(lines, at + 1, margin))[0]
            if _asks_for_something(sentence):
                yield named[1], sentence


def _first_paragraph(lines: Sequence[str], start: int, margin: str) -> str:
    """Join the lines of the first paragraph, without call signatures."""
    words: list[str] = []
    for line in lines[start:]:
        if not line.startswith(margin.rstrip() or margin):
            break
        content = line[len(margin) :].strip()
        if words and not content:
            break
        if words or not _CALL.match(content):
            words += content.split()
    return " ".join(words)


def _asks_for_something(sentence: str) -> bool:
    # For a class without a text, pydoc continues with the order of its bases.
    headline = sentence.startswith("Method resolution order:") or "://" in sentence
    return sentence[:1].isupper() and not headline and MIN_WORDS <= len(sentence.split()) <= MAX_WORDS


@dataclass(frozen=True, slots=True)
class Pairs:
    """Documents without their query sentences, and these queries by split."""

    documents: Mapping[str, str]
    train: Mapping[str, str]
    dev: Mapping[str, str]
    qrels: Qrels


def make_pairs(documents: Mapping[str, str], per_document: int = PER_DOCUMENT) -> Pairs:
    """Make queries of at most `per_document` summaries; every document that has the sentence is relevant.

    A package's queries are all for training or all for validation, depending on its name alone.
    """
    joined = {doc_id: " ".join(re.split(_GAP, text)) for doc_id, text in documents.items()}
    places: dict[str, tuple[str, ...]] = {}
    chosen: dict[str, tuple[str, str]] = {}
    for doc_id, text in documents.items():
        candidates = sorted(summaries(text), key=lambda each: _drawn(f"{doc_id}.{each[0]}"))
        kept = 0
        for name, sentence in candidates:
            if kept == per_document:
                break
            if sentence in places:
                continue
            places[sentence] = tuple(other for other, whole in joined.items() if sentence in whole)
            one_split = len({_is_dev(other) for other in places[sentence]}) == 1
            if one_split and len(places[sentence]) <= MAX_RELEVANT:
                chosen.setdefault(f"{doc_id}.{name}", (doc_id, sentence))
                kept += 1
    removed: dict[str, list[str]] = defaultdict(list)
    for _, sentence in chosen.values():
        for doc_id in places[sentence]:
            removed[doc_id].append(sentence)
    queries: dict[bool, dict[str, str]] = {False: {}, True: {}}
    for query_id, (doc_id, sentence) in chosen.items():
        queries[_is_dev(doc_id)][query_id] = sentence
    return Pairs(
        documents={doc_id: _without(text, removed[doc_id]) for doc_id, text in documents.items()},
        train=queries[False],
        dev=queries[True],
        qrels={query_id: dict.fromkeys(places[sentence], 1) for query_id, (_, sentence) in chosen.items()},
    )


def _drawn(key: str) -> int:
    """Draw a number that depends on the key alone, on every machine."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest())


def _is_dev(doc_id: str) -> bool:
    return _drawn(doc_id.partition(".")[0]) % DEV_OF == 0


def _without(text: str, sentences: Sequence[str]) -> str:
    # The longest first: a shorter one may be its beginning.
    for sentence in sorted(sentences, key=len, reverse=True):
        text = re.sub(_GAP.join(map(re.escape, sentence.split())), "", text)
    return text


@dataclass(frozen=True, slots=True)
class PairFiles:
    """The files of a training; judgements and candidates are of both splits."""

    folder: Path

    @property
    def collection(self) -> Path:
        """The documents, JSON lines."""
        return self.folder / "collection.jsonl"

    @property
    def train(self) -> Path:
        """The queries to train on."""
        return self.folder / "train.tsv"

    @property
    def dev(self) -> Path:
        """The queries to choose a ranker by."""
        return self.folder / "dev.tsv"

    @property
    def qrels(self) -> Path:
        """The relevant documents of each query."""
        return self.folder / "qrels.txt"

    @property
    def candidates(self) -> Path:
        """BM25's results: the negatives, and the documents to rerank for validation."""
        return self.folder / "candidates.trec"


def write_texts(pairs: Pairs, files: PairFiles) -> None:
    """Write documents, queries and judgements."""
    files.folder.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"id": doc_id, "text": text}, ensure_ascii=False)
        for doc_id, text in pairs.documents.items()
    ]
    files.collection.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    write_queries(files.train, pairs.train)
    write_queries(files.dev, pairs.dev)
    write_qrels(files.qrels, pairs.qrels)


def write_candidates(
    pairs: Pairs,
    index: Path,
    files: PairFiles,
    k: int,
    progress: Callable[[int], None] = lambda queries: None,
) -> None:
    """Search the index of the documents for every query, and write the first `k` results.

    Raises: ConfigError if the index cannot be opened or a package is missing.
    """
    run = asyncio.run(_search({**pairs.train, **pairs.dev}, index, k, progress))
    write_run(files.candidates, run, tag="bm25")


async def _search(queries: Mapping[str, str], index: Path, k: int, progress: Callable[[int], None]) -> Run:
    config = FirstStageConfig(indexes={"documents": Bm25Config(index)})
    stage = open_first_stages(config)
    run: Run = {}
    waiting = iter(queries.items())

    async def search_on() -> None:
        for query_id, text in waiting:
            found = await stage.search("documents", text, k, timeout_s=config.start_timeout_s)
            run[query_id] = rank(query_id, [(each.doc_id, each.score) for each in found])
            progress(len(run))

    try:
        await stage.start()
        async with asyncio.TaskGroup() as searching:
            for _ in range(config.search_threads):
                searching.create_task(search_on())
    finally:
        await stage.stop()
    # The queries' order, not the order in which searches ended.
    return {query_id: run[query_id] for query_id in queries}
