"""BM25 over texts in memory, to find candidates that share words with a query."""

from array import array
from collections.abc import Iterable

import numpy as np
from bm25s import BM25
from bm25s.tokenization import Tokenizer


class LexicalIndex:
    """An index of texts, identified by their position in the order given; it keeps words, not texts.

    BM25 as Lucene computes it, with Anserini's parameters. Words are runs of at least two letters or digits
    in lower case, of any language. There is no stop word and no stemming.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._tokenizer = Tokenizer(stopwords=None)
        # Arrays of word numbers take a fraction of the memory of lists.
        words = [array("i", each) for each in self._tokenizer.streaming_tokenize(texts)]
        self._texts = len(words)
        self._bm25 = BM25(k1=0.9, b=0.4, method="lucene")
        if words:
            self._bm25.index((words, self._tokenizer.get_vocab_dict()), show_progress=False)

    def scores(self, query: str) -> np.ndarray:
        """Score all texts for a query, 0 where they share no word. Shapes: -> (texts,) float32."""
        words = next(self._tokenizer.streaming_tokenize([query], update_vocab="never", allow_empty=False))
        if not words or not self._texts:
            return np.zeros(self._texts, dtype=np.float32)
        found: np.ndarray = self._bm25.get_scores_from_ids(words)
        return found

    def best(self, query: str, count: int) -> list[tuple[int, float]]:
        """Give the best texts' positions and scores; equal scores keep the order of the texts.

        The order does not depend on a machine's sort: candidates must be the same everywhere.
        """
        scores = self.scores(query)
        if count < len(scores):
            least = np.partition(scores, len(scores) - count)[len(scores) - count]
            places = np.flatnonzero(scores >= least)
        else:
            places = np.arange(len(scores))
        order = np.lexsort((places, -scores[places]))[:count]
        return [(int(places[each]), float(scores[places[each]])) for each in order]
