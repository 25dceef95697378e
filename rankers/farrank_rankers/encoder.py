"""The heavy half of a ranker: a transformers model with the same calls for every architecture."""

import inspect
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from farrank_rankers.backbone_facts import BackboneFacts
from farrank_rankers.backbones.build_backbone import build_backbone
from farrank_rankers.backbones.forms import forms_of, last_layer_for_first_tokens
from farrank_rankers.features import Features, Layout, PaddedFeatures
from farrank_rankers.reader import Reader
from farrank_rankers.spec import RankerSpec
from farrank_rankers.tokens import Role


class Encoder(nn.Module):
    """Base of the families' encoders; `backbone` is the transformers model.

    A family implements `read`, which makes features of the backbone's output. It may override `build`, which
    makes the backbone, and these attributes: with `keeps_hidden_states` the output has the hidden states of
    the embeddings and of every layer; `position_step` is the distance between tokens' positions;
    `reads_first_tokens_alone`: `read` needs no other vector of the last layer (see `without_unread`).
    `takes_token_types`: the backbone has token types. `config` is the backbone's parsed config.json. Called
    with input_ids, roles (of `tokens.Role`) and token_type_ids.
    Shapes: (P, L) each -> `Features` of P inputs, (P, F) or (P, S, F…).
    """

    keeps_hidden_states = False
    position_step = 1
    reads_first_tokens_alone = False

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.backbone = self.build(spec, config)
        self.facts = BackboneFacts.from_config(config)
        parameters = inspect.signature(self.backbone.forward).parameters
        self.takes_token_types = self.facts.token_types > 0 and "token_type_ids" in parameters
        self._call = forms_of(self.facts.architecture).call

    def build(self, spec: RankerSpec, config: Mapping[str, Any]) -> nn.Module:
        """Build the backbone, with random weights."""
        return build_backbone(spec, config)

    def head_weights(self) -> list[nn.Parameter]:
        """Find the weights of the head that transformers put on the backbone, a cross-encoder's for example.

        It includes the pooler before the head, which some architectures have.
        """
        backbone: Any = self.backbone
        prefix = getattr(backbone, "base_model_prefix", "")
        base = getattr(backbone, prefix, backbone) if prefix else backbone
        if base is backbone:
            return []
        of_base = {id(weight) for weight in base.parameters()}
        return [
            weight
            for name, weight in backbone.named_parameters()
            if id(weight) not in of_base or ".pooler." in name
        ]

    def own_weights(self, published: Mapping[str, Tensor], reader: Reader) -> dict[str, Tensor]:
        """Find the family's weights besides the backbone, which is already filled, in a published checkpoint.

        Most families find none, and start from random weights.
        """
        return {}

    def without_unread(self) -> AbstractContextManager[None]:
        """Temporarily leave out the last layer's computations for tokens that nothing reads.

        For inference only: there is no dropout.
        """
        return last_layer_for_first_tokens(self.backbone) if self.reads_first_tokens_alone else nullcontext()

    def forward(self, input_ids: Tensor, roles: Tensor, token_type_ids: Tensor) -> Features:
        """Shapes: (P, L) each -> (P, …)."""
        output = self.run(input_ids, roles, token_type_ids, hidden_states=self.keeps_hidden_states)
        return self.read(output, PaddedFeatures(roles))

    def infer(self, input_ids: Tensor, roles: Tensor, token_type_ids: Tensor) -> Features:
        """Compute as `forward` does, without tokens that nothing reads; for one thread at a time.

        Shapes: (P, L) each -> (P, …).
        """
        with self.without_unread():
            features: Features = self(input_ids, roles, token_type_ids)
        return features

    @property
    def feature_values(self) -> int:
        """The maximum number of a token's values in the features."""
        config: Any = self.backbone.config
        return int(config.hidden_size) * (config.num_hidden_layers + 1 if self.keeps_hidden_states else 1)

    def read(self, output: Any, tokens: Layout) -> Features:
        """Make features of the backbone's output, whose token vectors have the layout `tokens`.

        Shapes: last_hidden_state (…, H), each of hidden_states (…, H), logits (P, labels)
        -> (P, F), or (…, F…) with roles.
        """
        raise NotImplementedError

    def stepped(self, places: Tensor, lengths: Tensor) -> Tensor:
        """Number the tokens of short inputs in steps; this depends on an input's length, not on its batch.

        Shapes: places (…), counted from 0, and the lengths of their inputs (…) -> (…).
        Source: Zhu et al., "LongEmbed", EMNLP 2024.
        """
        positions = self.facts.max_positions
        if self.position_step == 1 or positions is None:
            return places
        steps = torch.where(lengths <= positions // self.position_step, self.position_step, 1)  # (…)
        return (places * steps).clamp(max=positions - 1)  # padding may reach beyond the table

    def run(
        self, input_ids: Tensor, roles: Tensor, token_type_ids: Tensor, *, hidden_states: bool = False
    ) -> Any:
        """Call the backbone with its architecture's arguments; return its own output object.

        With `hidden_states`, the output also has those of the embeddings and of every layer.
        """
        real = roles != Role.PADDING  # (P, L)
        seen = real & (roles != Role.EXPANSION)  # (P, L)
        inputs: dict[str, Any] = {"input_ids": input_ids, "attention_mask": seen.to(input_ids.dtype)}
        if hidden_states:
            inputs["output_hidden_states"] = True
        if self.takes_token_types:
            inputs["token_type_ids"] = token_type_ids
        if self.position_step > 1 or self.facts.first_position:
            # Without position ids, a backbone whose positions do not start at 0 gives padding inside the
            # query no positions, and later tokens would move with the query's length.
            places = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)  # (P, L)
            positions = self.stepped(places, real.sum(dim=1, keepdim=True))  # (P, L)
            inputs["position_ids"] = positions + self.facts.first_position  # (P, L)
        return self._call(self.backbone, roles, inputs)
