"""The texts that measure and calibrate an export: real ones."""

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from farrank_rankers.errors import ExportError
from farrank_rankers.reader import Reader
from farrank_rankers.tokens import EncoderBatch, EncoderInput, collate
from farrank_trec.errors import InputError
from farrank_trec.lines import json_object, named_string, numbered_lines

DOCUMENTS = 20
QUERIES = 20
QUERY_WORDS = 8
# Documents that are compared have this number of words, if they are not shorter. The scores of documents of
# all lengths lie further apart than those of the candidates that callers send: an export that keeps a
# Kendall's tau of 0.95 for them kept 0.88 for callers.
COMPARED_WORDS = 150

# Two documents to rank in each of the two sets, that of the measurement and that of the calibration.
MIN_TEXTS = 4


@dataclass(frozen=True, slots=True)
class SampleTexts:
    """Documents, and queries that are each a few words of one document."""

    queries: tuple[str, ...]
    documents: tuple[str, ...]


def python_documentation() -> list[str]:
    """Give the topics of Python's `help()`, which every interpreter includes: 30 to 8,000 words each."""
    from pydoc_data.topics import topics

    return [topics[name] for name in sorted(topics)]


def read_texts(path: Path) -> list[str]:
    """Read documents from a file of JSON objects with a `text`, one a line.

    Raises: ExportError naming file and line.
    """
    try:
        return [
            named_string(where, json_object(where, line), ["text"]) for where, line in numbered_lines(path)
        ]
    except InputError as error:
        raise ExportError(str(error)) from error


def divide(texts: Iterable[str], origin: str) -> tuple[SampleTexts, SampleTexts]:
    """Divide documents into a set to measure with, cut to equal length, and one to calibrate with.

    Raises: ExportError naming `origin` if there are too few.
    """
    by_length = sorted(_usable(texts), key=lambda text: (len(text), text))
    if len(by_length) < MIN_TEXTS:
        raise ExportError(
            f"{origin} has {len(by_length)} different texts of at least {QUERY_WORDS} words; "
            f"it must have at least {MIN_TEXTS}"
        )
    measured, calibration = by_length[::2], by_length[1::2]
    long = sum(len(text.split()) >= COMPARED_WORDS for text in measured)
    compared = measured[-max(long, DOCUMENTS) :]
    return _texts([_stretch(text) for text in _spread(compared, DOCUMENTS)]), _texts(calibration)


def enough(texts: Iterable[str]) -> bool:
    """Whether `divide` takes these texts."""
    return len(_usable(texts)) >= MIN_TEXTS


def _usable(texts: Iterable[str]) -> set[str]:
    return {text for text in texts if len(text.split()) >= QUERY_WORDS}


def _texts(documents: Sequence[str]) -> SampleTexts:
    return SampleTexts(tuple(map(_query, _spread(documents, QUERIES))), tuple(documents))


def _stretch(document: str) -> str:
    """Cut COMPARED_WORDS words from the middle; a shorter document stays whole."""
    words = [*re.finditer(r"\S+", document)]
    if len(words) <= COMPARED_WORDS:
        return document
    start = (len(words) - COMPARED_WORDS) // 2
    stretch = words[start : start + COMPARED_WORDS]
    return document[stretch[0].start() : stretch[-1].end()]


def _query(document: str) -> str:
    words = document.split()
    start = (len(words) - QUERY_WORDS) // 2
    return " ".join(words[start : start + QUERY_WORDS])


def _spread(values: Sequence[str], count: int) -> list[str]:
    """Take `count` values at equal distances from the first to the last, or all if there are fewer."""
    if len(values) <= count:
        return list(values)
    return [values[index * (len(values) - 1) // (count - 1)] for index in range(count)]


CALIBRATION_INPUTS = 128
SHORTEST_TOKENS = 8
SEED = 1
# In a dual plan, every fourth input is a query.
QUERY_EVERY = 4


def calibration_batches(
    reader: Reader, queries: Sequence[str], texts: Sequence[str], count: int = CALIBRATION_INPUTS
) -> list[EncoderBatch]:
    """Frame beginnings of chunks, from a few tokens to whole windows, as the ranker's reader frames chunks.

    A batch has one input, so that no padding is calibrated. The same texts give the same batches.
    Raises: ValueError if there is no query or no text that holds a token.
    """
    randomly = random.Random(SEED)
    read_queries = [read for read in map(reader.read_query, queries) if len(read)]
    documents = [read for read in map(reader.read_document, texts) if len(read)]
    for name, kept in (("queries", read_queries), ("texts", documents)):
        if not kept:
            raise ValueError(f"{name} hold no token; calibration needs at least 1")
    dual = reader.spec.plan == "dual"

    def draw(number: int) -> EncoderInput:
        query = read_queries[number % len(read_queries)]
        if dual and number % QUERY_EVERY == 0:
            return reader.query_input(query)
        chunk = randomly.choice(reader.split(documents[number % len(documents)]))
        tokens = randomly.randint(min(SHORTEST_TOKENS, len(chunk)), len(chunk))
        return reader.chunk_input(None if dual else query, replace(chunk, ids=chunk.ids[:tokens]))

    return [collate([draw(number)], reader.pad_id) for number in range(count)]
