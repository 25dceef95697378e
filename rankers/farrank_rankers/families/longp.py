"""LongP: a document is one long chunk."""

from farrank_rankers.families.firstp import FirstP


class LongP(FirstP):
    """Score a document as one chunk, as long as the backbone reads, F(pooled).

    What sets it apart from FirstP is its window, which is the whole document unless the backbone has fewer
    positions, and the pooling that goes with its backbones: [CLS], or the mean of all tokens.

    Shapes: features (D, C, H), chunk_mask (D, C) -> scores (D,), chunk_scores (D, C).
    Raises: ValueError if a document has no chunk.
    Source: the long-document cross-encoders of Boytsov et al., arXiv 2207.01262.
    """
