"""Contexts of a share of an article's tokens: whether the answer is in them."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch

from farrank_bench.evidence.articles import Question, Span
from farrank_bench.evidence.ways import BI_ENCODER, Article, encoded
from farrank_bench.report import Row, at_least, below
from farrank_client import Client
from farrank_rankers.evidence.sentences import sentences
from farrank_rankers.files.open import open_ranker
from farrank_rankers.ranker import Ranker

SURVIVES = 0.95


def survival(client: Client, texts: dict[str, str], questions: Sequence[Question], share: float) -> list[Row]:
    """Pack each question's article into a share of its tokens, as served and in other ways.

    The article is the call's only document; tokens are those of the bi-encoder's tokenizer.
    """
    ranker = open_ranker(BI_ENCODER).eval()
    articles = {name: _Sentences(ranker, text) for name, text in texts.items()}
    survived, shares = defaultdict[str, list[bool]](list), list[float]()
    for question in questions:
        article = articles[question.article]
        budget = int(share * article.tokens)
        ranking = client.rerank(question.text, [article.text], context_tokens=budget, timeout_s=600)
        pieces = [(piece.start, piece.end) for piece in ranking.context]
        shares.append(article.count(pieces) / article.tokens)
        survived["packed (served)"].append(question.survives(pieces))
        survived["truncation"].append(question.survives([(0, article.end_of(budget))]))
        best = article.best(question.text)
        survived["best chunks"].append(question.survives(article.fitting(best, budget)))
        highlights = article.highlights(question.text)
        survived["sentences by the bi-encoder alone"].append(
            question.survives(article.fitting(highlights, budget))
        )
    rows = [
        at_least(way, [float(np.mean(its))], SURVIVES if "served" in way else None)
        for way, its in survived.items()
    ]
    return [*rows, below("share of the tokens, packed", shares, share + 1e-9)]


class _Sentences(Article):
    """An article with the bi-encoder's vector of each of its sentences."""

    def __init__(self, ranker: Ranker, text: str) -> None:
        super().__init__(ranker, text)
        reader = ranker.reader
        self._read = reader.read_document(text)
        self.tokens = len(self._read)
        self._spans = sentences(text)
        own = [reader.split(reader.read_document(text[start:end]))[0] for start, end in self._spans]
        self._vectors = torch.cat([encoded(ranker, [reader.chunk_input(None, each)]) for each in own])

    def count(self, spans: Sequence[Span]) -> int:
        """Count the tokens of some spans."""
        return sum(self.ranker.reader.tokenizer.count(self.text[start:end]) for start, end in spans)

    def end_of(self, budget: int) -> int:
        """The last character of the first tokens."""
        return int(self._read.ends[budget - 1])

    def highlights(self, query: str) -> list[Span]:
        """All sentences, best first."""
        order = (self._vectors @ self.query_vector(query)).argsort(descending=True).tolist()
        return [self._spans[place] for place in order]

    def fitting(self, spans: Sequence[Span], budget: int) -> list[Span]:
        """Take spans in their order, each that fits."""
        kept = []
        for span in spans:
            if (size := self.count([span])) <= budget:
                kept.append(span)
                budget -= size
        return kept
