"""What a backbone's `config.json` says about its inputs, read without transformers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from farrank_rankers.backbones.alibi_checkpoints import own_backbone
from farrank_rankers.errors import SourceError
from farrank_rankers.family import Pooling

# Backbones whose position ids start at pad_token_id + 1, and are derived from the ids when none are given.
POSITIONS_AFTER_PAD = frozenset(
    {
        "camembert",
        "data2vec-text",
        "ibert",
        "longformer",
        "mpnet",
        "roberta",
        "roberta-prelayernorm",
        "xlm-roberta",
        "xlm-roberta-xl",
    }
)

# What transformers assumes where an old config.json is silent: (max_position_embeddings, type_vocab_size).
SILENT_DEFAULTS: Mapping[str, tuple[int, int]] = {
    "albert": (512, 2),
    "bert": (512, 2),
    "convbert": (512, 2),
    "electra": (512, 2),
    "mobilebert": (512, 2),
}

# Decoders: a token sees those before it alone, so that the first one knows nothing of the others.
CAUSAL = frozenset({"llama"})

# Encoders that were trained to be read as the mean of their tokens.
MEAN_POOLED = frozenset({"jina"})


@dataclass(frozen=True, slots=True)
class BackboneFacts:
    """How many positions, segments and words a backbone has; None where no limit is known.

    `first_position` is the position id of an input's first token. `architecture` is transformers' model_type,
    or the name of a backbone that is written out here. ALiBi has no table of positions that could end, so
    that its backbones have no limit; how far they were trained, only their papers say.
    """

    max_positions: int | None
    segments: int
    first_position: int
    pad_token_id: int | None
    vocabulary: int | None = None
    architecture: str = ""
    tokenizer_class: str | None = None

    @property
    def pooling(self) -> Pooling:
        """How one vector is made of token vectors where nobody says otherwise."""
        return "mean" if self.architecture in CAUSAL | MEAN_POOLED else "cls"

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "BackboneFacts":
        """Read the facts from the parsed `config.json` of a transformers model.

        Raises: SourceError naming the key that holds no number.
        """
        model_type = config.get("model_type", "")
        positions, segments = SILENT_DEFAULTS.get(model_type, (None, 0))
        positions = _number(config, "max_position_embeddings", positions)
        pad = _number(config, "pad_token_id")
        if pad is None and model_type in CAUSAL:  # trained without padding: any token does, for it is masked
            ends = config.get("eos_token_id")
            pad = ends[0] if isinstance(ends, list) else ends
        first = 0
        if model_type in POSITIONS_AFTER_PAD:
            first = (1 if pad is None else pad) + 1
        own = own_backbone(config)
        if own is not None or (positions is not None and positions <= 0):
            positions = None  # DeBERTa's -1, XLNet's: relative positions only
        return cls(
            max_positions=None if positions is None else positions - first,
            segments=_number(config, "type_vocab_size", segments) or 0,
            first_position=first,
            pad_token_id=pad,
            vocabulary=_number(config, "vocab_size"),
            architecture=own or model_type,
            tokenizer_class=config.get("tokenizer_class"),
        )


def _number(config: Mapping[str, Any], key: str, default: int | None = None) -> int | None:
    value = config.get(key, default)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise SourceError(f"config.json: {key} is {value!r}; it must be a whole number")
    return value
