"""The computation of a score: tokens, chunks, encoder inputs, features, score.

Importing this package does not import torch, so that a process that only reads text starts fast. Models are
in `farrank_rankers.ranker` and `farrank_rankers.families`; `farrank_rankers.files.open` opens both halves.
"""

from farrank_rankers.chunking import Chunking
from farrank_rankers.errors import RankerError, ReadingStopped, SourceError, SpecError, WeightsError
from farrank_rankers.family import Plan
from farrank_rankers.spec import RankerSpec
from farrank_rankers.tokens import Chunk, EncoderInput, TokenizedText

__all__ = [
    "Chunk",
    "Chunking",
    "EncoderInput",
    "Plan",
    "RankerError",
    "RankerSpec",
    "ReadingStopped",
    "SourceError",
    "SpecError",
    "TokenizedText",
    "WeightsError",
]
