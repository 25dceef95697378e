"""Published checkpoints of JinaBERT and MosaicBERT: their sizes, their code, and their tensors' names."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from farrank_rankers.backbone_facts import OwnBackbone, own_backbone
from farrank_rankers.errors import SourceError
from farrank_rankers.json_values import read_value


@dataclass(frozen=True, slots=True)
class AlibiBertConfig:
    """Sizes and rates under their names in `config.json`; other keys do not influence the encoder.

    `max_position_embeddings` is left out on purpose: ALiBi has no table of positions.
    """

    vocab_size: int
    type_vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    layer_norm_eps: float
    initializer_range: float
    hidden_dropout_prob: float
    attention_probs_dropout_prob: float

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "AlibiBertConfig":
        """Read the parsed `config.json`; missing keys have no defaults.

        Raises: SourceError naming the key that is missing or out of its limits.
        """
        sizes = cls(**{field.name: _number(config, field.name, field.type) for field in fields(cls)})
        if sizes.hidden_size % sizes.num_attention_heads:
            raise SourceError(
                f"config.json: num_attention_heads is {sizes.num_attention_heads}; "
                f"it must divide hidden_size, which is {sizes.hidden_size}"
            )
        return sizes


# Our names of modules, and the published ones; those of layers without their numbers.
MODULES = {
    "embeddings.word": "embeddings.word_embeddings",
    "embeddings.segment": "embeddings.token_type_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.qkv": "attention.self.Wqkv",
    "attention.output": "attention.output.dense",
    "attention.norm": "attention.output.LayerNorm",
    "feed_forward.gated": "mlp.gated_layers",
    "feed_forward.output": "mlp.wo",
    "feed_forward.norm": "mlp.layernorm",
}

# Beginnings of the names of heads' tensors, after the kind's prefix: the encoder does not use them.
HEADS = ("cls.", "pooler.")


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """Properties of all published checkpoints of one kind.

    Their config.json has the `required` values, and its auto_map names one of `code` for `auto_class`. All
    names of the encoder's tensors begin with `prefix`.
    """

    required: Mapping[str, str]
    auto_class: str
    code: frozenset[str]
    prefix: str

    def name(self, own: str) -> str:
        """Translate our name of a tensor."""
        module, _, parameter = own.rpartition(".")
        layer = ""
        if module.startswith("layers."):
            _, number, module = module.split(".", 2)
            layer = f"encoder.layer.{number}."
        return f"{self.prefix}{layer}{MODULES[module]}.{parameter}"


PUBLISHED: Mapping[OwnBackbone, CheckpointFacts] = {
    # jinaai/jina-embeddings-v2-base-en. Source: the names under which huggingface/candle's jina_bert.rs reads
    # that checkpoint, without a prefix before "embeddings" and "encoder". vllm-project/vllm's jina_bert.py
    # ignores names that begin with "pooler" or "cls".
    "jina": CheckpointFacts(
        {"hidden_act": "gelu", "position_embedding_type": "alibi", "feed_forward_type": "geglu"},
        auto_class="AutoModel",
        # jina-bert-v2-qk-post-norm has the same keys in its config.json, but other layers; auto_map differs.
        code=frozenset({"jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"}),
        prefix="",
    ),
    # mosaicml/mosaic-bert-base-seqlen-2048, saved as a masked language model. Source: the parameter names of
    # mosaicml/examples, bert/src/bert_layers.py. oaqa/FlexNeuART's mosaicbert.py takes "bert." off the
    # checkpoint's names and drops those that begin with "cls" before it loads the encoder.
    "mosaic": CheckpointFacts(
        {"hidden_act": "gelu"},
        auto_class="AutoModelForMaskedLM",
        # A checkpoint names only the file of its code; one saved again from it also names the repository.
        code=frozenset(
            {"bert_layers.BertForMaskedLM"}
            | {
                f"mosaicml/mosaic-bert-base{variant}--bert_layers.BertForMaskedLM"
                for variant in ("", "-seqlen-256", "-seqlen-512", "-seqlen-1024", "-seqlen-2048")
            }
        ),
        prefix="bert.",
    ),
}


def check_supported(config: Mapping[str, Any]) -> tuple[OwnBackbone, AlibiBertConfig]:
    """Find the backbone that a parsed `config.json` needs, and read its sizes.

    Raises: SourceError naming the key of `config.json` that is missing or has an unsupported value.
    """
    kind = own_backbone(config)
    if kind is None:
        raise SourceError(
            f"config.json: model_type {config.get('model_type')!r} with architectures "
            f"{config.get('architectures')!r} is neither JinaBERT nor MosaicBERT"
        )
    published = PUBLISHED[kind]
    for key, supported in published.required.items():
        if key not in config:
            raise SourceError(f"config.json: {key} is missing; it must be {supported!r}")
        if config[key] != supported:
            raise SourceError(f"config.json: {key} is {config[key]!r}; only {supported!r} is supported")
    auto_map = config.get("auto_map")
    reference = auto_map.get(published.auto_class) if isinstance(auto_map, Mapping) else None
    if not isinstance(reference, str) or reference not in published.code:
        raise SourceError(
            f"config.json: auto_map gives {reference!r} for {published.auto_class}; a hub's code is never "
            f"run, and only {' or '.join(sorted(published.code))} is written out here"
        )
    return kind, AlibiBertConfig.from_config(config)


def _number(config: Mapping[str, Any], key: str, kind: Any) -> Any:
    if key not in config:
        raise SourceError(f"config.json: {key} is missing")
    value = config[key]
    read_value(kind, value, f"config.json: {key}", SourceError)
    if key.endswith("_prob"):
        if not 0 <= value < 1:
            raise SourceError(f"config.json: {key} is {value}; it must be at least 0 and below 1")
    elif value <= 0:
        raise SourceError(f"config.json: {key} is {value}; it must be greater than 0")
    return value
