"""The size of a small BERT that aggregates vectors."""

from dataclasses import dataclass, fields

from farrank_rankers.errors import SpecError
from farrank_rankers.limits import check_count

# A slip of the pen must not build a model for hours: no transformer of an aggregator comes near these.
MOST_LAYERS = 128
LARGEST_SIZE = 2**20


@dataclass(frozen=True, slots=True)
class TransformerShape:
    """What a BERT must have for its checkpoint to fit; the defaults are MiniLM's cross-encoder of 6 layers.

    `width` is that of its vectors, `intermediate` that of its feed-forward layers, `vocabulary` counts the
    word embeddings, which a checkpoint has though vectors take their place.
    Raises: SpecError naming field, value and limit.
    """

    layers: int = 6
    heads: int = 12
    width: int = 384
    intermediate: int = 1536
    positions: int = 512
    vocabulary: int = 30522

    def __post_init__(self) -> None:
        """Refuse sizes that make no BERT."""
        for name in (field.name for field in fields(self)):
            at_most = MOST_LAYERS if name == "layers" else LARGEST_SIZE
            check_count(name, getattr(self, name), at_least=1, at_most=at_most)
        if self.width % self.heads:
            raise SpecError(f"heads is {self.heads}; it must divide the width of {self.width}")


# cross-encoder/ms-marco-MiniLM-L-6-v2 and -L-2-v2, from which the paper's aggregators start.
MINILM_L6 = TransformerShape()
MINILM_L2 = TransformerShape(layers=2)
