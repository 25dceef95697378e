"""Build a backbone with random weights from a parsed `config.json`."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from farrank_rankers.backbone_facts import STATIC, own_backbone
from farrank_rankers.backbones.alibi_bert import build_alibi_bert
from farrank_rankers.backbones.forms import forms_of
from farrank_rankers.backbones.published_config import as_installed
from farrank_rankers.backbones.static_embedding import StaticEmbedding
from farrank_rankers.errors import SourceError
from farrank_rankers.lean_transformers import transformers
from farrank_rankers.not_served import UNKNOWN
from farrank_rankers.spec import RankerSpec

# A typing error must not build a model for hours; -1 heads divide every size, and fail only in use.
LIMITED = ("num_hidden_layers", "num_attention_heads")
AT_MOST = 1_000


def transformers_config(config: Mapping[str, Any]) -> Any:
    """Convert a parsed `config.json` to transformers' configuration object.

    Raises: SourceError if transformers does not know the architecture, or a key, which it names, is out of
    limits.
    """
    values = as_installed(config)
    model_type = values.pop("model_type", None)
    if model_type not in transformers.CONFIG_MAPPING:
        raise UNKNOWN.error(f"{model_type}, release {transformers.__version__}")
    try:
        built = transformers.AutoConfig.for_model(model_type, **values)
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(f"config.json: model_type {model_type!r} cannot be built: {error}") from error
    for key in LIMITED:
        value = getattr(built, key, None)
        if isinstance(value, int) and not 1 <= value <= AT_MOST:
            raise SourceError(f"config.json: {key} is {value}; it must be from 1 to {AT_MOST:,}")
    built.dtype = None  # models are built in torch's default dtype and converted afterwards
    return built


def build_backbone(spec: RankerSpec, config: Mapping[str, Any]) -> nn.Module:
    """Build a model that ends in token vectors, without transformers' pooling layer on [CLS].

    Raises: SourceError naming the key of `config.json` that cannot be built.
    """
    if own_backbone(config) is not None:
        return build_alibi_bert(config)
    if config.get("model_type") == STATIC:
        return StaticEmbedding(config)
    backbone: nn.Module = transformers.AutoModel.from_config(_prepared(spec, config))
    if getattr(backbone, "pooler", None) is not None:
        backbone.register_module("pooler", None)
    return backbone


def build_classifier(spec: RankerSpec, config: Mapping[str, Any]) -> nn.Module:
    """Build a model that ends in logits.

    Raises: SourceError if transformers would build none, or a backbone different from the checkpoint's.
    """
    own = own_backbone(config)
    if own is not None:
        raise SourceError(
            f"config.json: architectures {config.get('architectures')!r} is a {own} backbone, of which only "
            "the encoder is written out here; a classifier's head on it cannot be opened"
        )
    return transformers.AutoModelForSequenceClassification.from_config(_prepared(spec, config))


def _prepared(spec: RankerSpec, config: Mapping[str, Any]) -> Any:
    built = transformers_config(config)
    forms_of(built.model_type).prepare(spec, built)
    if getattr(built, "attn_logit_softcapping", None) is not None:
        # torch's own attention has no soft cap, and transformers 4 would silently leave it out.
        built._attn_implementation = "eager"
    return built
