"""The heavy half of a ranker: a transformers model, called the same way whatever its architecture."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig

from farrank_rankers.backbone_facts import BackboneFacts
from farrank_rankers.errors import SourceError
from farrank_rankers.features import Features
from farrank_rankers.tokens import Role


class Encoder(nn.Module):
    """Base of the families' encoders; `backbone` is the transformers model that does the work.

    Called with input_ids, roles (of `tokens.Role`) and token_type_ids.
    Shapes: (P, L) each -> `Features` of P inputs, (P, F) or (P, S, F…).
    """

    def __init__(self, backbone: nn.Module, facts: BackboneFacts) -> None:
        super().__init__()
        self.backbone = backbone
        parameters = inspect.signature(backbone.forward).parameters
        self._takes_segments = facts.segments > 0 and "token_type_ids" in parameters
        self._first_position = facts.first_position

    def forward(self, input_ids: Tensor, roles: Tensor, token_type_ids: Tensor) -> Features:
        """Shapes: (P, L) each -> (P, …)."""
        raise NotImplementedError

    def run(self, input_ids: Tensor, roles: Tensor, token_type_ids: Tensor) -> Any:
        """Call the backbone with what its architecture takes; return its own output object."""
        attention_mask = (roles != Role.PADDING).to(input_ids.dtype)
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}  # (P, L) each
        if self._takes_segments:
            inputs["token_type_ids"] = token_type_ids
        if self._first_position:
            # Left to itself, such a backbone gives padding inside the query no position of its own, and what
            # follows would move with the query's length.
            positions = torch.arange(input_ids.shape[1], device=input_ids.device) + self._first_position
            inputs["position_ids"] = positions.expand_as(input_ids)  # (P, L)
        return self.backbone(**inputs)


def transformers_config(config: Mapping[str, Any]) -> Any:
    """Make a parsed `config.json` the configuration object that transformers builds models from.

    Raises: SourceError if transformers does not know the architecture.
    """
    model_type = config.get("model_type")
    try:
        built = AutoConfig.for_model(
            model_type, **{name: value for name, value in config.items() if name != "model_type"}
        )
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(f"config.json: model_type {model_type!r} cannot be built: {error}") from error
    built.dtype = None  # models are built in torch's default and converted afterwards
    return built


def without_pooler(backbone: nn.Module) -> nn.Module:
    """Take out the layer that transformers puts behind [CLS]: these families read the vector itself."""
    if getattr(backbone, "pooler", None) is not None:
        backbone.register_module("pooler", None)
    return backbone
