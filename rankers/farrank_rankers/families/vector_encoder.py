"""The encoder and the head of every family that reads one vector a chunk."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from farrank_rankers.backbone_facts import BackboneFacts
from farrank_rankers.backbones.build import build_backbone
from farrank_rankers.encoder import Encoder
from farrank_rankers.errors import SpecError
from farrank_rankers.family import VectorOptions
from farrank_rankers.features import Features
from farrank_rankers.layout import Layout
from farrank_rankers.spec import RankerSpec


class VectorEncoder(Encoder):
    """Encode a query-chunk pair as one vector of the last layer: [CLS], or the mean of its tokens.

    Shapes: input_ids, roles, token_type_ids (P, L) -> (P, H).
    """

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__(build_backbone(spec, config), BackboneFacts.from_config(config))
        if not isinstance(spec.options, VectorOptions):
            raise SpecError(f"options are {type(spec.options).__name__}; they must be VectorOptions")
        self.pooling = spec.options.pooling
        self.reads_first_tokens_alone = self.pooling == "cls"

    def read(self, output: Any, tokens: Layout) -> Features:
        """Shapes: last_hidden_state (…, H) -> (P, H)."""
        hidden: Tensor = output.last_hidden_state
        # A mean of many tokens in bf16 would lose the small differences between them.
        return Features(tokens.first(hidden) if self.pooling == "cls" else tokens.mean(hidden.float()))


class Head(nn.Module):
    """F in the papers: Dropout(0.1) and a linear layer to one score, Xavier-initialised.

    Shapes: (…, H) -> (…).
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.1)
        self.linear = nn.Linear(hidden_size, 1)
        nn.init.xavier_uniform_(self.linear.weight)

    def forward(self, vectors: Tensor) -> Tensor:
        """Shapes: (…, H) -> (…)."""
        scores: Tensor = self.linear(self.dropout(vectors))  # (…, 1)
        return scores.squeeze(-1)
