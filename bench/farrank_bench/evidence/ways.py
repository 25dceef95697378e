"""Ways to choose a chunk's sentences, compared by whether the chosen sentence has the answer."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import torch

from farrank_bench.evidence.articles import Question, Span
from farrank_bench.report import Row
from farrank_rankers.evidence.choosing import DocumentText, sentences_of
from farrank_rankers.evidence.matching import QueryTerms
from farrank_rankers.files.open import open_ranker
from farrank_rankers.ranker import Ranker
from farrank_rankers.token_vectors import document_vectors, query_vectors
from farrank_rankers.tokens import EncoderInput

BI_ENCODER, CROSS_ENCODER, MAXSIM = "embedded", "embedded:maxp", "embedded:maxsim"


def compare(texts: dict[str, str], questions: Sequence[Question], chunks: int) -> list[Row]:
    """Let each way order the sentences of the bi-encoder's best chunks of each question's article."""
    rankers = {name: open_ranker(name).eval() for name in (BI_ENCODER, CROSS_ENCODER, MAXSIM)}
    articles = {name: Article(rankers[BI_ENCODER], text) for name, text in texts.items()}
    hits, seconds = defaultdict[str, list[tuple[bool, bool]]](list), defaultdict[str, float](float)
    possible = 0
    for question in questions:
        text = texts[question.article]
        best = articles[question.article].best(question.text)[:chunks]
        spans = sentences_of(DocumentText(text), best)
        if not any(question.survives([span]) for span in spans):
            continue
        possible += 1
        for way, value in _ways(rankers, articles[question.article], question.text, best).items():
            started_s = time.perf_counter()
            values = value(spans)
            seconds[way] += time.perf_counter() - started_s
            order = sorted(range(len(spans)), key=lambda place: -values[place])
            found = [question.survives([spans[place]]) for place in order]
            hits[way].append((found[0], any(found[:3])))
    rows = [Row("questions whose answer is in these chunks", f"{possible} of {len(questions)}")]
    for way, its in hits.items():
        first, third = np.mean(its, axis=0)
        rows.append(Row(way, f"{first:.3f} / {third:.3f}, {seconds[way] / possible * 1e3:.1f} ms"))
    return rows


class Article:
    """An article with its chunks' vectors."""

    def __init__(self, ranker: Ranker, text: str) -> None:
        self.ranker, self.text = ranker, text
        chunks = ranker.reader.split(ranker.reader.read_document(text))
        self.spans = [(chunk.start, chunk.end) for chunk in chunks]
        self.vectors = torch.cat(
            [encoded(ranker, [ranker.reader.chunk_input(None, chunk)]) for chunk in chunks]
        )

    def query_vector(self, query: str) -> torch.Tensor:
        """The vector of a query."""
        reader = self.ranker.reader
        return encoded(self.ranker, [reader.query_input(reader.read_query(query))])[0]

    def best(self, query: str) -> list[Span]:
        """All chunks, best first."""
        order = (self.vectors @ self.query_vector(query)).argsort(descending=True).tolist()
        return [self.spans[place] for place in order]


Values = Callable[[Sequence[Span]], Sequence[float]]


def _ways(
    rankers: dict[str, Ranker], article: Article, query: str, best: Sequence[Span]
) -> dict[str, Values]:
    text = article.text

    def words(spans: Sequence[Span]) -> Sequence[float]:
        return QueryTerms(query, [text]).values([text[start:end] for start, end in spans])

    def itself(ranker: Ranker) -> Values:
        return lambda spans: [
            each.score for each in ranker.score(query, [text[start:end] for start, end in spans])
        ]

    def left_out(spans: Sequence[Span]) -> Sequence[float]:
        without = []
        for start, end in spans:
            first, last = next(span for span in best if min(end, span[1]) > max(start, span[0]))
            without.append(text[first : max(first, start)] + text[min(end, last) : last])
        return [-each.score for each in rankers[CROSS_ENCODER].score(query, without)]

    def matches(spans: Sequence[Span]) -> Sequence[float]:
        ranker = rankers[MAXSIM]
        reader = ranker.reader
        with torch.inference_mode():
            asked = query_vectors(
                ranker.encoder(*ranker.tensors([reader.query_input(reader.read_query(query))])).rows()[0]
            )
            values = np.full(len(spans), -np.inf)
            for first, last in best:
                read = reader.read_document(text[first:last])
                inputs = [reader.chunk_input(None, chunk) for chunk in reader.split(read)]
                found = document_vectors(ranker.encoder(*ranker.tensors(inputs)), reader, read)
                products = found.vectors @ asked.vectors.T
                starts = found.spans(read)[:, 0] + first
                for place, (start, end) in enumerate(spans):
                    own = products[(starts >= max(start, first)) & (starts < end)]
                    if len(own):
                        values[place] = max(values[place], float(own.max(axis=0).sum()))
        return values.tolist()

    return {
        "the first sentence": lambda spans: [-place for place in range(len(spans))],
        "words (served)": words,
        "each sentence's own score, bi-encoder": itself(rankers[BI_ENCODER]),
        "each sentence's own score, cross-encoder": itself(rankers[CROSS_ENCODER]),
        "leave one out, cross-encoder": left_out,
        "MaxSim of token vectors (with encoding)": matches,
    }


def encoded(ranker: Ranker, inputs: Sequence[EncoderInput]) -> torch.Tensor:
    """Encode inputs of one length. Shapes: N -> (N, H)."""
    with torch.inference_mode():
        vectors: torch.Tensor = ranker.encoder(*ranker.tensors(inputs)).vectors
    return vectors
