"""Published checkpoints of JinaBERT and MosaicBERT: their sizes, their code, and the names of their tensors.

Nothing here imports torch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from farrank_rankers.backbones.facts import OwnBackbone, own_backbone
from farrank_rankers.errors import SourceError

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


@dataclass(frozen=True, slots=True)
class PublishedNames:
    """A published checkpoint's module names and ours; {n} stands for a layer's number.

    `prefix` stands before every published name of the encoder, `projections` are the modules that make
    queries, keys and values. All other names are the same for both checkpoints.
    """

    prefix: str
    projections: Mapping[str, str]

    def parameters(self, layers: int) -> Iterator[tuple[str, str]]:
        """List every tensor of an encoder of so many layers by both names."""
        modules = dict(EMBEDDINGS)
        for n in range(layers):
            for published, own in {**LAYER, **self.projections}.items():
                modules[published.format(n=n)] = own.format(n=n)
        for published, own in modules.items():
            yield f"{self.prefix}{published}.weight", f"{own}.weight"
            if not own.endswith(WITHOUT_BIAS):
                yield f"{self.prefix}{published}.bias", f"{own}.bias"


EMBEDDINGS = {
    "embeddings.word_embeddings": "embeddings.word",
    "embeddings.token_type_embeddings": "embeddings.segment",
    "embeddings.LayerNorm": "embeddings.norm",
}
LAYER = {
    "encoder.layer.{n}.attention.output.dense": "layers.{n}.attention.output",
    "encoder.layer.{n}.attention.output.LayerNorm": "layers.{n}.attention.norm",
    "encoder.layer.{n}.mlp.gated_layers": "layers.{n}.feed_forward.gated",
    "encoder.layer.{n}.mlp.wo": "layers.{n}.feed_forward.output",
    "encoder.layer.{n}.mlp.layernorm": "layers.{n}.feed_forward.norm",
}
WITHOUT_BIAS = ("embeddings.word", "embeddings.segment", "feed_forward.gated")

# Tensors of a head, of which an encoder has no use.
HEAD = (
    "cls.predictions.bias",
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
    "cls.predictions.transform.dense.weight",
    "cls.predictions.transform.dense.bias",
    "cls.predictions.transform.LayerNorm.weight",
    "cls.predictions.transform.LayerNorm.bias",
)

NAMES: Mapping[OwnBackbone, PublishedNames] = {
    # jinaai/jina-embeddings-v2-base-en. Source: the names under which huggingface/candle's jina_bert.rs reads
    # that checkpoint, with nothing before "embeddings" and "encoder". vllm-project/vllm's jina_bert.py passes
    # over those that begin with "pooler" or "cls".
    "jina": PublishedNames(
        prefix="",
        projections={
            "encoder.layer.{n}.attention.self.query": "layers.{n}.attention.query",
            "encoder.layer.{n}.attention.self.key": "layers.{n}.attention.key",
            "encoder.layer.{n}.attention.self.value": "layers.{n}.attention.value",
        },
    ),
    # mosaicml/mosaic-bert-base-seqlen-2048, saved as a masked language model. Source: the parameter names of
    # mosaicml/examples, bert/src/bert_layers.py. oaqa/FlexNeuART's mosaicbert.py takes "bert." off the
    # checkpoint's names and drops those that begin with "cls" before it loads the encoder.
    "mosaic": PublishedNames(
        prefix="bert.",
        projections={"encoder.layer.{n}.attention.self.Wqkv": "layers.{n}.attention.qkv"},
    ),
}


def check_supported(config: Mapping[str, Any]) -> tuple[OwnBackbone, AlibiBertConfig]:
    """Say which backbone a parsed `config.json` asks for, and read its sizes.

    Raises: SourceError naming the key of `config.json` that is missing or has an unsupported value.
    """
    kind = _kind(config)
    _require(config, "hidden_act", "gelu")
    if kind == "jina":
        _require(config, "position_embedding_type", "alibi")
        _require(config, "feed_forward_type", "geglu")
        _require_code(config, "AutoModel", JINA_CODE)
    else:
        _require_code(config, "AutoModelForMaskedLM", MOSAIC_CODE)
    return kind, AlibiBertConfig.from_config(config)


def parameter_names(config: Mapping[str, Any]) -> dict[str, str]:
    """Give the checkpoint's name of every tensor that is read, and the backbone's parameter it goes to.

    Raises: SourceError if the config asks for neither backbone, or lacks a size.
    """
    kind = _kind(config)
    return dict(NAMES[kind].parameters(AlibiBertConfig.from_config(config).num_hidden_layers))


def ignored_names(config: Mapping[str, Any]) -> frozenset[str]:
    """Give the checkpoint's names of the tensors that are passed over on purpose.

    Raises: SourceError if the config asks for neither backbone.
    """
    pooler = f"{NAMES[_kind(config)].prefix}pooler.dense"
    return frozenset({*HEAD, f"{pooler}.weight", f"{pooler}.bias"})


def _kind(config: Mapping[str, Any]) -> OwnBackbone:
    kind = own_backbone(config)
    if kind is None:
        raise SourceError(
            f"config.json: model_type {config.get('model_type')!r} with architectures "
            f"{config.get('architectures')!r} is neither JinaBERT nor MosaicBERT"
        )
    return kind


def _require(config: Mapping[str, Any], key: str, supported: str) -> None:
    """Refuse a config whose `key` is not the one value that is implemented here."""
    if key not in config:
        raise SourceError(f"config.json: {key} is missing; it must be {supported!r}")
    if config[key] != supported:
        raise SourceError(f"config.json: {key} is {config[key]!r}; only {supported!r} is supported")


def _require_code(config: Mapping[str, Any], auto_class: str, supported: frozenset[str]) -> None:
    """Refuse a config whose `auto_map` points to other code than that which was written out here."""
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
