"""What codecs lose: rankings by rounded vectors, compared with rankings by the same vectors in fp32.

Every document of the demo and of NFCorpus is ranked for each judged question, and for DL19's topics the 100
passages of each of four first stages: the mean of the four counts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from farrank_bench.report import Measure, Row, not_measured
from farrank_demo.questions import load_qrels, load_questions
from farrank_indexes.chunk_encoder import TokenVectorEncoder
from farrank_indexes.pydoc_corpus import read_pydoc
from farrank_indexes.token_vector_store import SAMPLE, EncodedTokens
from farrank_rankers.family import MaxSimOptions
from farrank_rankers.files.open import open_ranker
from farrank_runtimes.maxsim import score_token_vectors
from farrank_runtimes.runtime import CodecName
from farrank_runtimes.token_codecs import CodedVectors, TokenCodec, fit
from farrank_runtimes.torch_runtime import TorchRuntime
from farrank_trec import Qrels, Run, rank, read_documents, read_qrels, read_queries, read_run
from farrank_trec.measures import evaluate, parse_measures

MEASURE, TOP = "nDCG@10", 10
MOST_LOST: Mapping[CodecName, float] = {"int8": 0.001, "int4": 0.005}
# A codec is also fitted to this number of vectors: an index may begin with a few documents.
SMALL_SAMPLE = 1_000
_STAGES = ("bm25", "bm25_rm3", "splade", "tasb")
_BATCH = 64
# The embedded model with projections, and no training.
UNTRAINED = "embedded:maxsim"


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """A collection in fp32. Shapes: queries (Q, K) each.

    `candidates` are the documents that each query ranks, once for each first stage; empty means all.
    """

    doc_ids: Sequence[str]
    documents: Sequence[EncodedTokens]
    query_ids: Sequence[str]
    queries: Sequence[Tensor]
    options: MaxSimOptions
    qrels: Qrels
    candidates: Sequence[Mapping[str, frozenset[str]]] = ()

    def fitted(self, name: CodecName, sample: int) -> TokenCodec:
        """Fit a codec to the first vectors."""
        counts = np.cumsum([len(each.vectors) for each in self.documents])
        some = self.documents[: int(np.searchsorted(counts, sample)) + 1]
        return fit(name, np.concatenate([each.vectors for each in some])[:sample])

    def scores(self, codec: TokenCodec | None) -> NDArray[np.float64]:
        """Score all documents for all queries. Shapes: -> (N, D)."""
        rows = (each.vectors if codec is None else codec.encode(each.vectors) for each in self.documents)
        coded = [
            CodedVectors(torch.from_numpy(each), document.window_ends, codec)
            for each, document in zip(rows, self.documents, strict=True)
        ]
        found = (score_token_vectors(coded, [query] * len(coded), self.options) for query in self.queries)
        return np.array([each.scores for each in found])

    def runs(self, scores: NDArray[np.float64]) -> Iterator[Run]:
        """Rank, once for each first stage."""
        for candidates in self.candidates or ({},):
            run: Run = {}
            for query_id, row in zip(self.query_ids, scores, strict=True):
                wanted = candidates.get(query_id)
                pairs = [
                    (doc_id, float(score))
                    for doc_id, score in zip(self.doc_ids, row, strict=True)
                    if wanted is None or doc_id in wanted
                ]
                run[query_id] = rank(query_id, pairs)
            yield run


def losses(ranker: Path | None, data: Path | None) -> Iterator[tuple[str, Measure]]:
    """List the measurements of each collection's losses, by their titles."""
    for name in ("the demo", "NFCorpus", "DL19 passages"):
        yield f"Codecs: {name}", partial(_losses_of, name, ranker, data)


def _losses_of(name: str, ranker: Path | None, data: Path | None) -> list[Row]:
    if name != "the demo" and data is None:
        return [not_measured(name, "--data names no folder")]
    return _lost(_encoded(name, str(ranker or UNTRAINED), data or Path()))


def _encoded(name: str, ranker: str, data: Path) -> Encoded:
    candidates: list[Mapping[str, frozenset[str]]] = []
    if name == "the demo":
        documents = [(each.doc_id, each.text) for each in read_pydoc()]
        queries, qrels = {each.query_id: each.text for each in load_questions()}, load_qrels()
    elif name == "NFCorpus":
        folder = data / "nfcorpus"
        documents = _documents(folder / "corpus.jsonl.gz")
        queries, qrels = read_queries(folder / "queries.jsonl.gz"), read_qrels(folder / "qrels.test.txt.gz")
    else:
        folder = data / "trecdl19"
        documents = _documents(folder / "passages.jsonl.gz")
        queries, qrels = read_queries(folder / "topics.dl19.tsv.gz"), read_qrels(folder / "qrels.dl19.txt.gz")
        for stage in _STAGES:
            run = read_run(folder / f"run.dl19.{stage}.trec.gz")
            candidates.append({key: frozenset(each.doc_id for each in found) for key, found in run.items()})
    queries = {query_id: text for query_id, text in queries.items() if query_id in qrels}
    encoder = TokenVectorEncoder(ranker, "quick")
    texts = [text for _, text in documents]
    made = [
        each
        for first in range(0, len(texts), _BATCH)
        for each in encoder.encode(texts[first : first + _BATCH])
    ]
    encoder.close()
    opened = open_ranker(ranker)
    runtime = TorchRuntime(opened, "fp32")
    reader = opened.reader
    asked = [
        runtime.encode([reader.query_input(reader.read_query(text))]).rows()[0].vectors
        for text in queries.values()
    ]
    return Encoded(
        [doc_id for doc_id, _ in documents],
        made,
        list(queries),
        asked,
        reader.spec.options_as(MaxSimOptions),
        qrels,
        candidates,
    )


def _documents(path: Path) -> list[tuple[str, str]]:
    return [(each.doc_id, each.text) for each in read_documents([str(path)])]


def _lost(collection: Encoded) -> list[Row]:
    exact = list(collection.runs(collection.scores(None)))
    values = _values(collection, exact)
    rows = [
        Row("documents", f"{len(collection.doc_ids):,}"),
        Row("vectors", f"{sum(len(each.vectors) for each in collection.documents):,}"),
        Row("queries", f"{len(values)}"),
        Row(f"{MEASURE} in fp32", f"{values.mean():.4f}"),
    ]
    for name in get_args(CodecName):
        for sample in (SAMPLE, SMALL_SAMPLE):
            if name == "fp16" and sample == SMALL_SAMPLE:
                continue
            codec = collection.fitted(name, sample)
            found = list(collection.runs(collection.scores(codec)))
            change = _values(collection, found) - values
            error = change.std(ddof=1) / len(change) ** 0.5
            most = MOST_LOST.get(name)
            rows.append(
                Row(
                    f"{name}, fitted to {sample:,} vectors: change of {MEASURE} (standard error); "
                    f"share of the same {TOP}",
                    f"{change.mean():+.4f} ({error:.4f}); {_shared(exact, found):.3f}",
                    "" if most is None else f"at least {-most:g}",
                    None if most is None else bool(change.mean() >= -most),
                )
            )
    return rows


def _values(collection: Encoded, runs: Sequence[Run]) -> NDArray[np.float64]:
    """Compute each query's measure, its mean over the first stages. Shapes: -> (N,)."""
    measures = parse_measures([MEASURE])
    each = [evaluate(collection.qrels, run, measures)[MEASURE] for run in runs]
    return np.array([np.mean([values[query_id] for values in each]) for query_id in collection.query_ids])


def _shared(ones: Sequence[Run], others: Sequence[Run]) -> float:
    """Compute the mean share of documents that two rankings have in common among their first."""

    def top(run: Run, query_id: str) -> set[str]:
        return {each.doc_id for each in run[query_id][:TOP]}

    pairs = [(one, other, query_id) for one, other in zip(ones, others, strict=True) for query_id in one]
    return float(np.mean([len(top(one, each) & top(other, each)) / TOP for one, other, each in pairs]))
