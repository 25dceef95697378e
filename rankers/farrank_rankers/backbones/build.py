"""From a parsed `config.json` to a backbone with random weights, whoever has its code."""

from collections.abc import Mapping
from typing import Any

from torch import nn
from transformers import AutoModel, AutoModelForSequenceClassification

from farrank_rankers.backbones import registry
from farrank_rankers.backbones.big_bird import attention_type
from farrank_rankers.backbones.transformers_config import transformers_config
from farrank_rankers.errors import SourceError
from farrank_rankers.spec import RankerSpec


def build_backbone(spec: RankerSpec, config: Mapping[str, Any]) -> nn.Module:
    """Build a model that ends in token vectors; transformers' layer behind [CLS] is left out.

    Raises: SourceError naming the key of `config.json` that cannot be built.
    """
    if registry.own_backbone(config) is not None:
        return registry.build_backbone(config)
    backbone: nn.Module = AutoModel.from_config(_prepared(spec, config))
    if getattr(backbone, "pooler", None) is not None:
        backbone.register_module("pooler", None)
    return backbone


def build_classifier(spec: RankerSpec, config: Mapping[str, Any]) -> nn.Module:
    """Build a model that ends in logits.

    Raises: SourceError if transformers would build another backbone than the checkpoint's, or none.
    """
    own = registry.own_backbone(config)
    if own is not None:
        raise SourceError(
            f"config.json: architectures {config.get('architectures')!r} is a {own} backbone, of which only "
            "the encoder is written out here; a classifier's head on it cannot be opened"
        )
    model: nn.Module = AutoModelForSequenceClassification.from_config(_prepared(spec, config))
    return model


def _prepared(spec: RankerSpec, config: Mapping[str, Any]) -> Any:
    built = transformers_config(config)
    if built.model_type == "big_bird":
        built.attention_type = attention_type(spec, built)
    return built
