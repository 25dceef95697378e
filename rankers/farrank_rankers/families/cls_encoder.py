"""The encoder and the head of every family that reads one vector a chunk."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from transformers import AutoModel

from farrank_rankers.backbone_facts import BackboneFacts
from farrank_rankers.encoder import Encoder, transformers_config, without_pooler
from farrank_rankers.spec import RankerSpec


class ClsEncoder(Encoder):
    """Encode a query-chunk pair as the last layer's first vector, cls.

    Shapes: input_ids, attention_mask, token_type_ids (P, L) -> (P, H).
    """

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        backbone = AutoModel.from_config(transformers_config(config))
        super().__init__(without_pooler(backbone), BackboneFacts.from_config(config))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Shapes: (P, L) each -> (P, H)."""
        hidden: Tensor = self.run(input_ids, attention_mask, token_type_ids).last_hidden_state  # (P, L, H)
        return hidden[:, 0]  # (P, H)


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
