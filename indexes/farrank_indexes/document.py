"""A document to index, and the frame that sends a batch of documents to the indexing process."""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farrank_trec.ranking_fields import NO_FIELDS, RankingFields

Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class IndexDocument:
    """One document to index. The index returns its text byte for byte."""

    doc_id: str
    text: str
    ranking: RankingFields = NO_FIELDS

    def digested(self) -> bytes:
        """Serialize the whole document, so that different documents give different bytes."""
        impacts = None if self.ranking.impacts is None else dict(self.ranking.impacts)
        whole = (self.doc_id, self.text, self.ranking.expansions, impacts, self.ranking.vector)
        return json.dumps(whole).encode()


class CollectionError(ValueError):
    """The documents cannot be indexed as they are. The message says why."""


def batch_frame(
    documents: Sequence[IndexDocument], vectors: Sequence[Vectors]
) -> tuple[dict[str, Any], list[str]]:
    """Pack documents and their chunks' vectors into a frame. Shapes: vectors D times (C, H)."""
    rankings = [each.ranking for each in documents]
    header = {
        "ids": [each.doc_id for each in documents],
        "expansions": [None if each.expansions is None else len(each.expansions) for each in rankings],
        "impacts": [each.impacts for each in rankings],
        "chunks": [len(each) for each in vectors],
        "vectors": base64.b64encode(b"".join(each.astype("<f4").tobytes() for each in vectors)).decode(),
    }
    return header, [text for each in documents for text in (each.text, *(each.ranking.expansions or ()))]
