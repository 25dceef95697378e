"""Published checkpoints of JinaBERT and MosaicBERT.

How they are recognised, their sizes, the names of their tensors.

Nothing here imports torch before a model is built.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from farrank_rankers.errors import SourceError

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class AlibiBertConfig:
    """Sizes and rates under their names in `config.json`; what is not here has no influence on the encoder.

    `max_position_embeddings` is left out on purpose: ALiBi has no table of positions that could end.
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
        """Read the parsed `config.json`; nothing is assumed where it is silent.

        Raises: SourceError naming the key that is missing or whose value is out of its limits.
        """
        numbers: dict[str, Any] = {
            field.name: _number(config, field.name, field.type) for field in fields(cls)
        }
        sizes = cls(**numbers)
        if sizes.hidden_size % sizes.num_attention_heads:
            raise SourceError(
                f"config.json: num_attention_heads is {sizes.num_attention_heads}; "
                f"it must divide hidden_size, which is {sizes.hidden_size}"
            )
        return sizes


def require(config: Mapping[str, Any], key: str, supported: str) -> None:
    """Refuse a config whose `key` is not the one value that is implemented here.

    Raises: SourceError naming the key, its value and the supported one.
    """
    if key not in config:
        raise SourceError(f"config.json: {key} is missing; it must be {supported!r}")
    if config[key] != supported:
        raise SourceError(f"config.json: {key} is {config[key]!r}; only {supported!r} is supported")


def require_code(config: Mapping[str, Any], auto_class: str, supported: frozenset[str]) -> None:
    """Refuse a config whose `auto_map` points to other code than that which was written out here.

    Raises: SourceError naming auto_map and the code it should point to.
    """
    auto_map = config.get("auto_map")
    reference = auto_map.get(auto_class) if isinstance(auto_map, Mapping) else None
    if not isinstance(reference, str) or reference not in supported:
        raise SourceError(
            f"config.json: auto_map gives {reference!r} for {auto_class}; a hub's code is never run, and "
            f"only {' or '.join(sorted(supported))} is written out here"
        )


def _number(config: Mapping[str, Any], key: str, kind: Any) -> int | float:
    if key not in config:
        raise SourceError(f"config.json: {key} is missing")
    value = config[key]
    wanted = (int,) if kind is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, wanted):
        raise SourceError(
            f"config.json: {key} is {value!r}; it must be {'an integer' if kind is int else 'a number'}"
        )
    if key.endswith("_prob"):
        if not 0 <= value < 1:
            raise SourceError(f"config.json: {key} is {value}; it must be at least 0 and below 1")
    elif not 0 < value < float("inf"):
        raise SourceError(f"config.json: {key} is {value}; it must be greater than 0")
    return value


@dataclass(frozen=True, slots=True)
class PublishedNames:
    """A published checkpoint's names on the left, ours on the right; {n} stands for a layer's number.

    `prefix` stands before every published name of the encoder; `ignored` are the names, in full, of tensors
    that belong to a head or can be computed, and of which an encoder has no use.
    """

    prefix: str
    embeddings: Mapping[str, str]
    layer: Mapping[str, str]
    ignored: frozenset[str]

    def parameters(self, layers: int) -> dict[str, str]:
        """Write the table out for an encoder of so many layers."""
        table = {f"{self.prefix}{published}": own for published, own in self.embeddings.items()}
        for n in range(layers):
            for published, own in self.layer.items():
                table[self.prefix + published.format(n=n)] = own.format(n=n)
        return table


JINA_NAMES = PublishedNames(
    prefix="",
    embeddings={
        "embeddings.word_embeddings.weight": "embeddings.word.weight",
        "embeddings.token_type_embeddings.weight": "embeddings.segment.weight",
        "embeddings.LayerNorm.weight": "embeddings.norm.weight",
        "embeddings.LayerNorm.bias": "embeddings.norm.bias",
    },
    layer={
        "encoder.layer.{n}.attention.self.query.weight": "layers.{n}.attention.query.weight",
        "encoder.layer.{n}.attention.self.query.bias": "layers.{n}.attention.query.bias",
        "encoder.layer.{n}.attention.self.key.weight": "layers.{n}.attention.key.weight",
        "encoder.layer.{n}.attention.self.key.bias": "layers.{n}.attention.key.bias",
        "encoder.layer.{n}.attention.self.value.weight": "layers.{n}.attention.value.weight",
        "encoder.layer.{n}.attention.self.value.bias": "layers.{n}.attention.value.bias",
        "encoder.layer.{n}.attention.output.dense.weight": "layers.{n}.attention.output.weight",
        "encoder.layer.{n}.attention.output.dense.bias": "layers.{n}.attention.output.bias",
        "encoder.layer.{n}.attention.output.LayerNorm.weight": "layers.{n}.attention.norm.weight",
        "encoder.layer.{n}.attention.output.LayerNorm.bias": "layers.{n}.attention.norm.bias",
        "encoder.layer.{n}.mlp.gated_layers.weight": "layers.{n}.feed_forward.gated.weight",
        "encoder.layer.{n}.mlp.wo.weight": "layers.{n}.feed_forward.output.weight",
        "encoder.layer.{n}.mlp.wo.bias": "layers.{n}.feed_forward.output.bias",
        "encoder.layer.{n}.mlp.layernorm.weight": "layers.{n}.feed_forward.norm.weight",
        "encoder.layer.{n}.mlp.layernorm.bias": "layers.{n}.feed_forward.norm.bias",
    },
    ignored=frozenset(
        {
            "pooler.dense.weight",
            "pooler.dense.bias",
            "cls.predictions.bias",
            "cls.predictions.decoder.weight",
            "cls.predictions.decoder.bias",
            "cls.predictions.transform.dense.weight",
            "cls.predictions.transform.dense.bias",
            "cls.predictions.transform.LayerNorm.weight",
            "cls.predictions.transform.LayerNorm.bias",
        }
    ),
)


MOSAIC_NAMES = PublishedNames(
    prefix="bert.",
    embeddings={
        "embeddings.word_embeddings.weight": "embeddings.word.weight",
        "embeddings.token_type_embeddings.weight": "embeddings.segment.weight",
        "embeddings.LayerNorm.weight": "embeddings.norm.weight",
        "embeddings.LayerNorm.bias": "embeddings.norm.bias",
    },
    layer={
        "encoder.layer.{n}.attention.self.Wqkv.weight": "layers.{n}.attention.qkv.weight",
        "encoder.layer.{n}.attention.self.Wqkv.bias": "layers.{n}.attention.qkv.bias",
        "encoder.layer.{n}.attention.output.dense.weight": "layers.{n}.attention.output.weight",
        "encoder.layer.{n}.attention.output.dense.bias": "layers.{n}.attention.output.bias",
        "encoder.layer.{n}.attention.output.LayerNorm.weight": "layers.{n}.attention.norm.weight",
        "encoder.layer.{n}.attention.output.LayerNorm.bias": "layers.{n}.attention.norm.bias",
        "encoder.layer.{n}.mlp.gated_layers.weight": "layers.{n}.feed_forward.gated.weight",
        "encoder.layer.{n}.mlp.wo.weight": "layers.{n}.feed_forward.output.weight",
        "encoder.layer.{n}.mlp.wo.bias": "layers.{n}.feed_forward.output.bias",
        "encoder.layer.{n}.mlp.layernorm.weight": "layers.{n}.feed_forward.norm.weight",
        "encoder.layer.{n}.mlp.layernorm.bias": "layers.{n}.feed_forward.norm.bias",
    },
    ignored=frozenset(
        {
            "bert.pooler.dense.weight",
            "bert.pooler.dense.bias",
            "cls.predictions.decoder.weight",
            "cls.predictions.decoder.bias",
            "cls.predictions.transform.dense.weight",
            "cls.predictions.transform.dense.bias",
            "cls.predictions.transform.LayerNorm.weight",
            "cls.predictions.transform.LayerNorm.bias",
        }
    ),
)


OwnBackbone = Literal["jina", "mosaic"]

JINA_ARCHITECTURES = frozenset({"JinaBertForMaskedLM", "JinaBertModel"})

# jina-bert-v2-qk-post-norm has the same keys in its config.json, but other layers: only auto_map tells.
JINA_CODE = frozenset({"jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"})

# A checkpoint names its code by the file alone; one that was saved again from it names the repository too.
MOSAIC_CODE = frozenset(
    {"bert_layers.BertForMaskedLM"}
    | {
        f"mosaicml/mosaic-bert-base{variant}--bert_layers.BertForMaskedLM"
        for variant in ("", "-seqlen-256", "-seqlen-512", "-seqlen-1024", "-seqlen-2048")
    }
)

NAMES: Mapping[OwnBackbone, PublishedNames] = {"jina": JINA_NAMES, "mosaic": MOSAIC_NAMES}


def own_backbone(config: Mapping[str, Any]) -> OwnBackbone | None:
    """Say which of this package's backbones a parsed `config.json` asks for; None leaves it to transformers.

    Both call themselves "bert", as which transformers would build another model without a word. JinaBERT is
    told by its architecture's name, MosaicBERT by alibi_starting_size.
    """
    if config.get("model_type") != "bert":
        return None
    architectures = config.get("architectures")
    if isinstance(architectures, list) and any(name in architectures for name in JINA_ARCHITECTURES):
        return "jina"
    return "mosaic" if "alibi_starting_size" in config else None


def build_backbone(config: Mapping[str, Any]) -> "nn.Module":
    """Build JinaBert or MosaicBert with random weights, to be filled or trained.

    Raises: SourceError naming the key of `config.json` that is missing or has an unsupported value.
    """
    kind = _kind(config)
    require(config, "hidden_act", "gelu")
    if kind == "jina":
        require(config, "position_embedding_type", "alibi")
        require(config, "feed_forward_type", "geglu")
        require_code(config, "AutoModel", JINA_CODE)
    else:
        require_code(config, "AutoModelForMaskedLM", MOSAIC_CODE)
    sizes = AlibiBertConfig.from_config(config)
    if kind == "jina":
        from farrank_rankers.backbones.alibi_bert import JinaBert

        return JinaBert(sizes)
    from farrank_rankers.backbones.alibi_bert import MosaicBert

    return MosaicBert(sizes)


def parameter_names(config: Mapping[str, Any]) -> dict[str, str]:
    """Give the checkpoint's name of every tensor that is read, and the backbone's parameter it goes to.

    Raises: SourceError if the config asks for no backbone of this package, or lacks a size.
    """
    return NAMES[_kind(config)].parameters(AlibiBertConfig.from_config(config).num_hidden_layers)


def ignored_names(config: Mapping[str, Any]) -> frozenset[str]:
    """Give the checkpoint's names of the tensors that are passed over on purpose.

    Raises: SourceError if the config asks for no backbone of this package.
    """
    return NAMES[_kind(config)].ignored


def _kind(config: Mapping[str, Any]) -> OwnBackbone:
    kind = own_backbone(config)
    if kind is None:
        raise SourceError(
            f"config.json: model_type {config.get('model_type')!r} with architectures "
            f"{config.get('architectures')!r} is neither JinaBERT nor MosaicBERT"
        )
    return kind
