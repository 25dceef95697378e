"""Facts of architectures, and facts of a backbone's inputs read from its `config.json`.

Nothing here imports torch or transformers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from farrank_rankers.errors import SourceError
from farrank_rankers.family import Pooling
from farrank_rankers.json_values import read_value

# Our name for sentence-transformers' StaticEmbedding, a table of vectors without a transformer.
STATIC = "static-embedding"
OwnBackbone = Literal["jina", "mosaic"]
JINA_ARCHITECTURES = frozenset({"JinaBertForMaskedLM", "JinaBertModel"})


@dataclass(frozen=True, slots=True)
class Architecture:
    """Facts of an architecture that its `config.json` does not state.

    `forms` names its file in this folder and the `Forms` there; without it transformers' model is called
    unchanged. `positions` and `token_types` are transformers' defaults for an old `config.json` without
    max_position_embeddings and type_vocab_size. `counts_after_pad`: position ids start at pad_token_id + 1,
    and are derived from the token ids if none are given. `is_causal`: a token sees only tokens before it, so
    the first token has no information about the others. `pooling` is the pooling of its training. `framed`:
    special tokens surround its texts. `own_attention`: attention depends on the query's tokens or on the
    longest input, which a graph of transformers' inputs alone cannot express. `length_decides`: it depends on
    the longest input, which is fixed in an exported graph.
    """

    forms: str = ""
    positions: int | None = None
    token_types: int = 0
    counts_after_pad: bool = False
    is_causal: bool = False
    pooling: Pooling = "cls"
    framed: bool = True
    own_attention: bool = False
    length_decides: bool = False


# By transformers' model_type, or our own name of a backbone that transformers lacks. Other architectures
# work, too, with padded batches, as their config.json describes them.
ARCHITECTURES: Mapping[str, Architecture] = {
    "albert": Architecture(positions=512, token_types=2),
    "bert": Architecture("bert:BERT", positions=512, token_types=2),
    "big_bird": Architecture("big_bird:BIG_BIRD", own_attention=True, length_decides=True),
    "camembert": Architecture("bert:ROBERTA", counts_after_pad=True),
    "convbert": Architecture(positions=512, token_types=2),
    "data2vec-text": Architecture("bert:ROBERTA", counts_after_pad=True),
    "deberta-v2": Architecture("deberta:DEBERTA"),
    "distilbert": Architecture("distilbert:DISTILBERT"),
    "electra": Architecture("bert:ELECTRA", positions=512, token_types=2),
    "gemma": Architecture("gemma:GEMMA", positions=8192, is_causal=True, pooling="mean"),
    "gemma2": Architecture("gemma:GEMMA2", positions=8192, is_causal=True, pooling="mean"),
    "gemma3_text": Architecture("gemma:GEMMA3", positions=131072, is_causal=True, pooling="mean"),
    "ibert": Architecture(counts_after_pad=True),
    "jina": Architecture("alibi_bert:ALIBI_BERT", token_types=2, pooling="mean"),
    "llama": Architecture("llama:LLAMA", is_causal=True, pooling="mean"),
    "longformer": Architecture("longformer:LONGFORMER", counts_after_pad=True, own_attention=True),
    "mobilebert": Architecture(positions=512, token_types=2),
    "modernbert": Architecture("modernbert:MODERNBERT", positions=8192),
    "mosaic": Architecture("alibi_bert:ALIBI_BERT", token_types=2),
    "mpnet": Architecture(counts_after_pad=True),
    "qwen2": Architecture("qwen:QWEN2", positions=32768, is_causal=True, pooling="mean"),
    "qwen3": Architecture("qwen:QWEN3", positions=32768, is_causal=True, pooling="mean"),
    "roberta": Architecture("bert:ROBERTA", counts_after_pad=True),
    "roberta-prelayernorm": Architecture(counts_after_pad=True),
    STATIC: Architecture(pooling="mean", framed=False),
    "xlm-roberta": Architecture("bert:ROBERTA", counts_after_pad=True),
    "xlm-roberta-xl": Architecture(counts_after_pad=True),
}


@dataclass(frozen=True, slots=True)
class BackboneFacts:
    """Numbers of a backbone's positions, token types and words; None if no limit is known.

    `first_position` is the position id of an input's first token. `pooling` is the pooling of token vectors
    in the backbone's training, the default of specs. `architecture` is transformers' model_type, or our own
    name of a backbone that transformers lacks. ALiBi has no table of positions and so no limit here: only
    the paper says on which lengths such a backbone was trained.
    """

    max_positions: int | None
    token_types: int
    first_position: int
    pad_token_id: int | None
    vocabulary: int | None = None
    architecture: str = ""
    tokenizer_class: str | None = None
    pooling: Pooling = "cls"

    @property
    def known(self) -> Architecture:
        """The facts of its architecture."""
        return ARCHITECTURES.get(self.architecture, Architecture())

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "BackboneFacts":
        """Read the facts from the parsed `config.json` of a transformers model.

        Raises: SourceError naming the key that is not a number.
        """
        own = own_backbone(config)
        name = own or config.get("model_type", "")
        known = ARCHITECTURES.get(name, Architecture())
        positions = _number(config, "max_position_embeddings", known.positions)
        pad = _number(config, "pad_token_id")
        if pad is None and known.is_causal:  # trained without padding: any token will do, as it is masked
            ends = config.get("eos_token_id")
            pad = ends[0] if isinstance(ends, list) else ends
        first = 0
        if known.counts_after_pad:
            first = (1 if pad is None else pad) + 1
        if own is not None or (positions is not None and positions <= 0):
            positions = None  # DeBERTa's -1, XLNet's: relative positions only
        return cls(
            max_positions=None if positions is None else positions - first,
            token_types=_number(config, "type_vocab_size", known.token_types) or 0,
            first_position=first,
            pad_token_id=pad,
            vocabulary=_number(config, "vocab_size"),
            architecture=name,
            tokenizer_class=config.get("tokenizer_class"),
            pooling=_classifier_pooling(config) or known.pooling,
        )


def own_backbone(config: Mapping[str, Any]) -> OwnBackbone | None:
    """Return the name of our own backbone that a parsed `config.json` needs; None for those of transformers.

    Both have model_type "bert", and transformers would build another model without a warning. The name of the
    architecture identifies JinaBERT, and alibi_starting_size MosaicBERT.
    """
    if config.get("model_type") != "bert":
        return None
    architectures = config.get("architectures")
    if isinstance(architectures, list) and any(name in architectures for name in JINA_ARCHITECTURES):
        return "jina"
    return "mosaic" if "alibi_starting_size" in config else None


def _classifier_pooling(config: Mapping[str, Any]) -> Pooling | None:
    """Read the pooling below a ModernBERT's head; other configurations have no such key."""
    key = "classifier_pooling"
    pooling: Pooling | None = config.get(key)
    read_value(Pooling | None, pooling, f"config.json: {key}", SourceError)
    return pooling


def _number(config: Mapping[str, Any], key: str, default: int | None = None) -> int | None:
    value = config.get(key, default)
    read_value(int | None, value, f"config.json: {key}", SourceError)
    return value
