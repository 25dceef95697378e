"""Scores of all chunks of questions' candidates, by rankers and by selectors, kept in files.

Each question has a file for every ranker and one for the selectors, so an interrupted run goes on where it
was. A bi-encoder's vectors have a file for each document, since questions share documents.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from farrank_bench.depth.replay import attended_score, max_score, of_chunks
from farrank_bench.depth.whole_documents import JudgedQuestion, WholeDocuments
from farrank_exporters.parity import encode_all
from farrank_rankers.aggregate import Aggregator
from farrank_rankers.depth.replay import Mask, Score
from farrank_rankers.depth.selection import Floats, bm25, count_terms
from farrank_rankers.families.parade import ParadeAttn
from farrank_rankers.families.passages import MaxP
from farrank_rankers.files.open import Overrides, open_ranker
from farrank_rankers.reader import Reader
from farrank_rankers.tokens import Chunk, EncoderInput
from farrank_runtimes.choose import open_ranker_runtime
from farrank_runtimes.runtime import Precision, Runtime

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class LoadedRanker:
    """A ranker: its reader, the fastest runtime that serves it here, and its own aggregator.

    `key` names weights, windows and precision.
    """

    reader: Reader
    runtime: Runtime
    aggregator: Aggregator[Any]
    key: str

    @classmethod
    def open(cls, source: str, precision: Precision | None, overrides: Overrides) -> Self:
        """Open a ranker. Raises: as `open_ranker_runtime`."""
        served = open_ranker_runtime(source, overrides, precision=precision)
        aggregator = open_ranker(source, **overrides).aggregator.eval()
        key = f"{served.version}-{served.runtime.capabilities().precision}"
        return cls(served.reader, served.runtime, aggregator, key)

    def vectors(self, inputs: Sequence[EncoderInput]) -> torch.Tensor:
        """Encode inputs, equal ones once. Shapes: -> (P, H)."""
        different = {each.input_ids.tobytes(): each for each in inputs}
        rows = {key: row for row, key in enumerate(different)}
        vectors = torch.stack([each.vectors for each in encode_all(self.runtime, list(different.values()))])
        return vectors[[rows[each.input_ids.tobytes()] for each in inputs]]

    def pair_values(self, question: str, chunks: Sequence[Chunk]) -> Floats:
        """Read chunks with a question, and keep what the aggregator needs of each. Shapes: -> (P, V)."""
        query = self.reader.read_query(question)
        vectors = self.vectors([self.reader.chunk_input(query, chunk) for chunk in chunks])
        with torch.inference_mode():
            return chunk_values(self.aggregator, vectors).double().numpy()


def chunk_values(aggregator: Aggregator[Any], vectors: torch.Tensor) -> torch.Tensor:
    """Compute the numbers of each chunk from which any subset of chunks is scored.

    Shapes: (P, H) -> (P, 1) scores for MaxP and FirstP, (P, 2) attention logits and scores for PARADE Attn.
    Raises: ValueError for other families.
    """
    if isinstance(aggregator, ParadeAttn) and aggregator.attention.out_features == 1:
        return torch.cat([aggregator.attention(vectors), aggregator.head(vectors)[:, None]], dim=1)
    if isinstance(aggregator, MaxP) and aggregator.aggregation in ("max", "first"):
        head: torch.Tensor = aggregator.head(vectors)
        return head[:, None]
    raise ValueError(f"{type(aggregator).__name__}: only MaxP, FirstP and PARADE Attn are replayed")


# By the number of values of a chunk.
SCORES: Mapping[int, Callable[[Floats, Mask], Floats]] = {1: max_score, 2: attended_score}


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A question with everything that a replay of one ranker needs.

    `cosine` comes from the bi-encoder's own windows, which an index stores, `cosine_of_chunks` from vectors
    of the ranker's chunks. `firstp` are the scores of a ranker of documents' first 512 positions, and
    `firstp_positions` their mean.
    Shapes: grades, firstp (D,); mask, positions, bm25, cosine, cosine_of_chunks (D, C); values (D, C, V).
    """

    query_id: str
    judged: Sequence[int]
    grades: Floats
    mask: Mask
    positions: Floats
    bm25: Floats
    cosine: Floats
    cosine_of_chunks: Floats
    values: Floats
    firstp: Floats
    firstp_positions: float

    @property
    def score(self) -> Score:
        """The ranker's scores of documents by the chunks that were read."""
        combine = SCORES[self.values.shape[-1]]
        return lambda read: combine(self.values, read)


class KeptScores:
    """A collection's files. All rankers have the chunks of `reader`; `encoder` is a bi-encoder.

    Raises: ValueError if their tokenizers differ.
    """

    def __init__(
        self, folder: Path, collection: WholeDocuments, reader: Reader, encoder: LoadedRanker
    ) -> None:
        if reader.tokenizer.files != encoder.reader.tokenizer.files:
            raise ValueError("the bi-encoder has another tokenizer than the rankers, whose chunks it encodes")
        self.collection, self._folder, self._encoder, self._reader = collection, folder, encoder, reader
        chunking = reader.spec.chunking
        self._cheap = f"{encoder.key}-{chunking.window}-{chunking.stride}"
        self._places = {doc_id: place for place, doc_id in enumerate(sorted(collection.texts))}
        self._chunks = cache(self._read_chunks)
        self._vectors = cache(self._read_vectors)

    def make(self, number: int, ranker: LoadedRanker, firstp: LoadedRanker) -> None:
        """Make the files of a question that are missing, by its number in the collection."""
        question = self.collection.questions[number]
        makers: list[Callable[[JudgedQuestion], Arrays]] = [
            self._selectors,
            partial(self._first, firstp),
            partial(self._values, ranker),
        ]
        for path, maker in zip(self._paths(number, ranker, firstp), makers, strict=True):
            _kept(path, partial(maker, question))

    def case(self, number: int, ranker: LoadedRanker, firstp: LoadedRanker) -> Case | None:
        """Give a question's case, by its number in the collection; None if a file is missing."""
        question, paths = self.collection.questions[number], self._paths(number, ranker, firstp)
        if not all(path.exists() for path in paths):
            return None
        cheap, first, found = map(_read, paths)
        counts = cheap["counts"]
        mask = np.arange(counts.max()) < counts[:, None]  # (D, C)
        columns = {
            name: padded(cheap[name], mask) for name in ("positions", "bm25", "cosine", "cosine_of_chunks")
        }
        return Case(
            query_id=question.query_id,
            judged=list(question.grades.values()),
            grades=np.array([question.grades.get(each, 0) for each in question.candidates], dtype=np.float64),
            mask=mask,
            values=padded(found["values"], mask),
            firstp=first["values"],
            firstp_positions=float(first["positions"].mean()),
            **columns,
        )

    def _paths(self, number: int, ranker: LoadedRanker, firstp: LoadedRanker) -> list[Path]:
        folders = (f"selectors-{self._cheap}", firstp.key, ranker.key)
        return [self._folder / folder / f"{number:05}.npz" for folder in folders]

    def _read_chunks(self, doc_id: str) -> tuple[Chunk, ...]:
        return self._reader.split(self._reader.read_document(self.collection.texts[doc_id]))

    def _read_vectors(self, doc_id: str) -> Arrays:
        reader = self._encoder.reader

        def make() -> Arrays:
            chunks = reader.split(reader.read_document(self.collection.texts[doc_id]))
            vectors, of_chunks = (
                self._encoder.vectors([reader.chunk_input(None, chunk) for chunk in some]).numpy()
                for some in (chunks, self._chunks(doc_id))
            )
            return {"vectors": vectors, "spans": _spans(chunks), "of_chunks": of_chunks}

        path = self._folder / f"vectors-{self._cheap}" / f"{self._places[doc_id]:05}.npz"
        return _kept(path, make)

    def _selectors(self, question: JudgedQuestion) -> Arrays:
        reader = self._encoder.reader
        asked = self._encoder.vectors([reader.query_input(reader.read_query(question.text))])[0].numpy()
        query = self._reader.read_query(question.text)
        documents = [self._chunks(each) for each in question.candidates]
        chunks = [chunk for each in documents for chunk in each]
        lengths = np.array([len(chunk) for chunk in chunks])
        stored = [self._vectors(each) for each in question.candidates]
        cosine = [
            of_chunks(found["vectors"] @ asked, found["spans"], _spans(split))
            for split, found in zip(documents, stored, strict=True)
        ]
        around = self._reader.chunk_input(query, chunks[0]).tokens - lengths[0]
        return {
            "counts": np.array([len(each) for each in documents]),
            "positions": lengths + around,
            "bm25": np.concatenate(
                list(bm25([count_terms(query.ids, [each.ids for each in its]) for its in documents]))
            ),
            "cosine": np.concatenate(cosine),
            "cosine_of_chunks": np.concatenate([found["of_chunks"] @ asked for found in stored]),
        }

    def _values(self, ranker: LoadedRanker, question: JudgedQuestion) -> Arrays:
        chunks = [chunk for each in question.candidates for chunk in self._chunks(each)]
        return {"values": ranker.pair_values(question.text, chunks)}

    def _first(self, firstp: LoadedRanker, question: JudgedQuestion) -> Arrays:
        reader, texts = firstp.reader, self.collection.texts
        chunks = [reader.split(reader.read_document(texts[each], 1), 1)[0] for each in question.candidates]
        around = reader.chunk_input(reader.read_query(question.text), chunks[0]).tokens - len(chunks[0])
        values = firstp.pair_values(question.text, chunks)[:, 0]
        return {"values": values, "positions": np.array([len(chunk) + around for chunk in chunks])}


def _kept(path: Path, make: Callable[[], Arrays]) -> Arrays:
    """Read arrays from a file, or make them and write the file."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        with unfinished.open("wb") as out:
            np.savez(out, **make())  # type: ignore[arg-type]  # its other parameter is a flag
        unfinished.replace(path)
    return _read(path)


def _read(path: Path) -> Arrays:
    with np.load(path) as arrays:
        return dict(arrays)


def _spans(chunks: Sequence[Chunk]) -> NDArray[np.int64]:
    return np.array([(chunk.start, chunk.end) for chunk in chunks], dtype=np.int64)


def padded(values: NDArray[Any], mask: Mask) -> Floats:
    """Divide chunks' values among documents, 0 at places without a chunk. Shapes: (P, …) -> (D, C, …)."""
    rows = np.zeros((*mask.shape, *values.shape[1:]))
    rows[mask] = values
    return rows
