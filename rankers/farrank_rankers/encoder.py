"""The heavy half of a ranker: a transformers model, called the same way whatever its architecture."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from farrank_rankers.backbone_facts import BackboneFacts
from farrank_rankers.backbones.calls import call_named
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
        self._call = call_named(facts.architecture)

    def forward(self, input_ids: Tensor, roles: Tensor, token_type_ids: Tensor) -> Features:
        """Shapes: (P, L) each -> (P, …)."""
        raise NotImplementedError

    def run(
        self,
        input_ids: Tensor,
        roles: Tensor,
        token_type_ids: Tensor,
        *,
        hidden_states: bool = False,
        position_ids: Tensor | None = None,
    ) -> Any:
        """Call the backbone with what its architecture takes; return its own output object.

        With `hidden_states`, the output has those of the embeddings and of every layer as well.
        `position_ids` (P, L) count from 0; None numbers the positions as they stand.
        """
        attention_mask = (roles != Role.PADDING).to(input_ids.dtype)
        inputs: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}  # (P, L) each
        if hidden_states:
            inputs["output_hidden_states"] = True
        if self._takes_segments:
            inputs["token_type_ids"] = token_type_ids
        if position_ids is None and self._first_position:
            # Left to itself, such a backbone gives padding inside the query no position of its own, and what
            # follows would move with the query's length.
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        if position_ids is not None:
            inputs["position_ids"] = position_ids + self._first_position  # (P, L)
        return self._call(self.backbone, roles, inputs)
