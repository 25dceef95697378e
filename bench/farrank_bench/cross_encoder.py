"""all-MiniLM-L6-v2 as a cross-encoder with a random head: the one model that all contenders load."""

from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel

from farrank_bench.calls import MAX_DOCUMENT_TOKENS, MAX_QUERY_TOKENS
from farrank_rankers.files.location import EMBEDDED
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.ranker import Ranker


@dataclass(frozen=True, slots=True)
class CrossEncoder:
    """The same weights twice: as an artifact of ours, and as transformers saves a sequence classifier."""

    ranker: Ranker
    artifact: Path
    transformers: Path


def write_cross_encoder(folder: Path) -> CrossEncoder:
    """Write both forms. The ranker's documents are one chunk each, as peers read them."""
    ranker = new_ranker(
        "cross-encoder",
        EMBEDDED,
        seed=1,
        window=MAX_DOCUMENT_TOKENS,
        stride=MAX_DOCUMENT_TOKENS,
        max_document_tokens=MAX_DOCUMENT_TOKENS,
        max_query_tokens=MAX_QUERY_TOKENS,
    )
    made = CrossEncoder(ranker, folder / "artifact", folder / "transformers")
    save_ranker(ranker, made.artifact)
    backbone = ranker.encoder.backbone
    if not isinstance(backbone, PreTrainedModel):
        raise AssertionError(f"{type(backbone).__name__} is none of transformers' classifiers")
    backbone.save_pretrained(made.transformers)
    ranker.reader.tokenizer.files.write(made.transformers)
    return made
