"""Token vectors of a query and of a document, with the places of a document's tokens in its text.

This is the interface between the encoder of `families.maxsim` and whatever compares or stores its vectors.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from farrank_rankers.family import MaxSimOptions
from farrank_rankers.features import Features
from farrank_rankers.reader import ChunkFramer, Reader
from farrank_rankers.tokens import IntArray, Role, TokenizedText

# The product of a query's vector with a document without any that is compared, and a lower bound of scores:
# below every real one, and finite. sentence-transformers has the same number.
NOTHING_TO_COMPARE = -1e9


def are_compared(roles: Tensor) -> Tensor:
    """Say which tokens of a document's inputs are compared. Shapes: (…) of `Role` -> (…) bool."""
    return (roles != Role.PADDING) & (roles != Role.SKIPPED)


def window_scores(best: Tensor, query_vectors: Tensor | int, options: MaxSimOptions) -> Tensor:
    """Add up the best products of a query's vectors, and divide by their number if configured.

    With a `text_head` the first product is that of the texts, and its mean with the tokens' counts.
    Shapes: best (…, Q), query_vectors (…) -> (…).
    """
    if options.text_head:
        return (best[..., 0] + best[..., 1:].sum(dim=-1) / query_vectors) / 2
    scores = best.sum(dim=-1).clamp(min=NOTHING_TO_COMPARE)
    return scores / query_vectors if options.mean else scores


@dataclass(frozen=True, slots=True, eq=False)
class TokenVectors:
    """The vectors of a text that MaxSim compares.

    Shapes: vectors (T, K) float32. `places` (T,) int32 is each vector's token among the text's own
    (`TokenizedText.ids`), −1 for special tokens, markers, prefixes and expansion. `window_ends` (C,) int64
    is the number of vectors up to the end of each window; a query has one window.
    """

    vectors: NDArray[np.float32]
    places: IntArray
    window_ends: NDArray[np.int64]

    def spans(self, text: TokenizedText) -> IntArray:
        """Give each vector's characters in its text, from the first to the one after the last.

        Vectors without a token of the text have the span -1..-1. Shapes: -> (T, 2).
        """
        spans = np.full((len(self.places), 2), -1, dtype=np.int32)
        own = self.places >= 0
        spans[own, 0] = text.starts[self.places[own]]
        spans[own, 1] = text.ends[self.places[own]]
        return spans


def query_vectors(features: Features) -> TokenVectors:
    """Take the vectors of an encoded query, all of which are compared. Shapes: (S, K) with roles (S,)."""
    roles: NDArray[np.int64] = features.token_roles.cpu().numpy()  # (S,)
    own = roles == Role.QUERY
    places = np.where(own, own.cumsum() - 1, -1)
    return _compared(features.vectors[None], features.token_roles[None], places[None])


def document_vectors(features: Features, reader: Reader, document: TokenizedText) -> TokenVectors:
    """Take the compared vectors of an encoded document, whose features are those of its first windows.

    Shapes: features (C, S, K) with roles (C, S).
    Raises: ValueError if the features have more windows than the document.
    """
    windows, _ = reader.places(document)
    count = len(features.vectors)
    if count > len(windows):
        raise ValueError(f"features have {count} windows; the document has {len(windows)}")
    starts, ends = windows[:count, 0, None], windows[:count, 1, None]  # (C, 1) each
    # Frame and prefix before the text are the same in all windows.
    places = np.arange(features.vectors.shape[1]) - reader.tokens_before_window + starts  # (C, S)
    own = (places >= starts) & (places < ends)
    return _compared(features.vectors, features.token_roles, np.where(own, places, -1))


def compared_places(reader: Reader, document: TokenizedText) -> IntArray:
    """Number a document's compared vectors as `TokenVectors.places` does, without encoding it.

    Shapes: -> (T,).
    """
    places: list[NDArray[np.int64]] = []
    chunks = reader.split(document)
    starts = reader.places(document)[0][:, 0].tolist()
    for start, chunk, framed in zip(starts, chunks, ChunkFramer(reader, None).inputs(chunks), strict=True):
        within = np.arange(framed.tokens) - reader.tokens_before_window  # (L,)
        of_text = (within >= 0) & (within < len(chunk))
        placed = np.where(of_text, within + start, -1)
        places.append(placed[(framed.roles != int(Role.SKIPPED)) & (framed.roles != int(Role.PADDING))])
    return np.concatenate(places).astype(np.int32)


def _compared(vectors: Tensor, roles: Tensor, places: NDArray[np.int64]) -> TokenVectors:
    """Shapes: (C, S, K), (C, S), (C, S)."""
    kept: NDArray[np.bool_] = are_compared(roles).cpu().numpy()  # (C, S)
    return TokenVectors(
        vectors=vectors.float().cpu().numpy()[kept],
        places=places[kept].astype(np.int32),
        window_ends=kept.sum(axis=1).cumsum(),
    )
