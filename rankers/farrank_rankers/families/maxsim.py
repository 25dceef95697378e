"""Late interaction by MaxSim: query and windows are encoded separately, and their token vectors compared."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from farrank_rankers.aggregate import Aggregator
from farrank_rankers.encoder import Encoder
from farrank_rankers.families.head import build_head, head_weights
from farrank_rankers.family import EvidenceKind, MaxSimOptions
from farrank_rankers.features import Features, Layout
from farrank_rankers.reader import Reader
from farrank_rankers.spec import RankerSpec
from farrank_rankers.token_vectors import NOTHING_TO_COMPARE, are_compared, window_scores
from farrank_rankers.tokens import Role


class TokenVectorEncoder(Encoder):
    """Encode a query or a window as one vector for each token: dense layers on it, then norm 1 if configured.

    The norm is computed in fp32 for every precision of the backbone.
    Shapes: (P, L) each -> (P, L, K) with roles (P, L).
    Source: Khattab & Zaharia, "ColBERT", SIGIR 2020.
    """

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__(spec, config)
        self.options = spec.options_as(MaxSimOptions)
        backbone: Any = self.backbone
        layers, width = self.options.head, int(backbone.config.hidden_size)
        self.head = build_head(layers, width) if layers else None
        self._values = layers[-1].width if layers else width

    @property
    def feature_values(self) -> int:
        """The number K of a token's values."""
        return self._values

    def read(self, output: Any, tokens: Layout) -> Features:
        """Shapes: last_hidden_state (…, H) -> (…, K)."""
        hidden: Tensor = output.last_hidden_state
        vectors = (hidden if self.head is None else self.head(hidden)).float()
        if self.options.normalize:
            vectors = torch.nn.functional.normalize(vectors, dim=-1)
        return Features(vectors, tokens.roles)

    def own_weights(self, published: Mapping[str, Tensor], reader: Reader) -> dict[str, Tensor]:
        """Take the head's weights, which have the same names."""
        return head_weights(published)


class MaxSim(Aggregator[Tensor]):
    """Add up, over the query's vectors, the largest product with a vector of the document.

    s = Σ_q max_t q·t, where q are all vectors of the query's input, those of special and expansion tokens
    included, and t those of the document that are compared. The windows of a long document count by
    `MaxSimOptions.aggregation`. A chunk's score is its own MaxSim: the window that a user would have got.
    This is the reference; servers compute it without padding (`farrank_runtimes.maxsim`).

    Raises: ValueError if the query is None.
    Source: Khattab & Zaharia, "ColBERT", SIGIR 2020.
    """

    evidence = EvidenceKind.CHUNK_SCORE

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.options = spec.options_as(MaxSimOptions)

    def interact(self, features: Features, chunk_mask: Tensor, query: Features | None) -> Tensor:
        """Find the best token of each window for each of the query's.

        Shapes: (D, C, S, K), (D, C), (D, Q, K) -> (D, C, Q + 1); the last one counts the query's vectors.
        """
        if query is None:
            raise ValueError("query is None; MaxSim compares a document's tokens with the query's")
        products = torch.einsum("dcsk,dqk->dcsq", features.vectors, query.vectors)
        compared = are_compared(features.token_roles) & chunk_mask[:, :, None]  # (D, C, S)
        best = products.masked_fill(~compared[..., None], NOTHING_TO_COMPARE).amax(dim=2)  # (D, C, Q)
        asked = (query.token_roles != Role.PADDING)[:, None]  # (D, 1, Q)
        counts = asked.sum(dim=2, keepdim=True).expand(-1, best.shape[1], -1)  # (D, C, 1)
        return torch.cat([best.masked_fill(~asked, 0.0), counts.to(best.dtype)], dim=2)

    def score(self, state: Tensor, masks: Tensor) -> Tensor:
        """Shapes: state (D, C, Q + 1), masks (V, D, C) -> (V, D)."""
        best, counts = state[..., :-1], state[:, 0, -1]  # (D, C, Q), (D,)
        present = masks[..., None]  # (V, D, C, 1)
        match self.options.aggregation:
            case "union":
                of_all = best.masked_fill(~present, NOTHING_TO_COMPARE).amax(dim=2)  # (V, D, Q)
                return window_scores(of_all, counts, self.options)
            case "max":
                each = window_scores(best, counts[:, None], self.options)  # (D, C)
                return each.masked_fill(~masks, -torch.inf).amax(dim=2)
            case "first":
                first = window_scores(best[:, 0], counts, self.options)  # (D,)
                return first.masked_fill(~masks[..., 0], -torch.inf)

    def chunk_scores(self, state: Tensor, chunk_mask: Tensor, scores: Tensor) -> Tensor:
        """Compute each window's own MaxSim. Shapes: state (D, C, Q + 1) -> (D, C)."""
        own = window_scores(state[..., :-1], state[..., -1], self.options)
        if self.options.aggregation != "first":
            return own
        first = torch.arange(chunk_mask.shape[1], device=chunk_mask.device) == 0  # (C,)
        return own.masked_fill(~first, -torch.inf)
