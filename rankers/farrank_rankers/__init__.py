"""What a score is: tokens, chunks, encoder inputs, features, score.

Everything under this name is free of torch, so that a process which only reads text starts fast. Models
live in `farrank_rankers.ranker` and `farrank_rankers.families`; `farrank_rankers.sources` opens both halves.
"""

from farrank_rankers.errors import RankerError, ReadingStopped, SourceError, SpecError, WeightsError
from farrank_rankers.spec import Chunking, Plan, RankerSpec
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
