"""Late interaction by MaxSim: query and windows are encoded separately, and their token vectors compared."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from farrank_rankers.aggregate import Aggregator
from farrank_rankers.encoder import Encoder
from farrank_rankers.errors import SpecError
from farrank_rankers.families.head import build_head, head_weights
from farrank_rankers.family import EvidenceKind, MaxSimOptions
from farrank_rankers.features import Features, Layout
from farrank_rankers.reader import Reader
from farrank_rankers.spec import RankerSpec
from farrank_rankers.token_vectors import NOTHING_TO_COMPARE, are_compared, window_scores
from farrank_rankers.tokens import Role


class TokenVectorEncoder(Encoder):
    """Encode a query or a window as one vector for each token: dense layers on it, then norm 1 if configured.

    With a `MaxSimOptions.text_head`, the first and the last one are the halves of the text's own.
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
        self.text_head = None
        if of_text := self.options.text_head:
            if of_text[-1].width != 2 * self._values:
                raise SpecError(
                    f"text_head ends with width {of_text[-1].width}; it must be {2 * self._values}, "
                    f"twice that of a token's vector"
                )
            self.text_head = build_head(of_text, width)

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
        if self.text_head is not None:
            mean = tokens.mean(hidden.float()).to(hidden.dtype)  # (P, H)
            text = torch.nn.functional.normalize(self.text_head(mean).float(), dim=-1)  # (P, 2 K)
            vectors = tokens.with_ends(vectors, *text.chunk(2, dim=1))
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
        if self.options.text_head:
            return self._interact_with_texts(features, chunk_mask, query)
        products = torch.einsum("dcsk,dqk->dcsq", features.vectors, query.vectors)
        compared = are_compared(features.token_roles) & chunk_mask[:, :, None]  # (D, C, S)
        best = products.masked_fill(~compared[..., None], NOTHING_TO_COMPARE).amax(dim=2)  # (D, C, Q)
        asked = (query.token_roles != Role.PADDING)[:, None]  # (D, 1, Q)
        counts = asked.sum(dim=2, keepdim=True).expand(-1, best.shape[1], -1)  # (D, C, 1)
        return torch.cat([best.masked_fill(~asked, 0.0), counts.to(best.dtype)], dim=2)

    def _interact_with_texts(self, features: Features, chunk_mask: Tensor, query: Features) -> Tensor:
        """Compare the texts' vectors, and the tokens between them.

        Shapes: as `interact`; the product of the texts is the first of the Q values, and the last one is 0.
        """
        (begins, ends), (asked_begin, asked_end) = (
            _ends(features),
            _ends(query),
        )  # (D, C, K) and (D, K), twice
        texts = (begins * asked_begin[:, None] + ends * asked_end[:, None]).sum(dim=2)  # (D, C)
        products = torch.einsum("dcsk,dqk->dcsq", features.vectors, query.vectors)
        inner = are_compared(features.token_roles) & _are_between(features.token_roles)  # (D, C, S)
        inner = inner & chunk_mask[:, :, None]
        asked = _are_between(query.token_roles)  # (D, Q)
        if (most := self.options.compared_windows) is not None and most < chunk_mask.shape[1]:
            best = texts.masked_fill(~chunk_mask, -torch.inf).topk(most, dim=1).indices  # (D, most)
            chosen = torch.zeros_like(chunk_mask).scatter(1, best, 1)  # (D, C)
            inner = inner & chosen[:, :, None]
        maxima = products.masked_fill(~inner[..., None], -torch.inf).amax(dim=2)  # (D, C, Q)
        maxima = maxima.masked_fill(~inner.any(dim=2)[..., None] | ~asked[:, None], 0.0)
        counts = asked.sum(dim=1).clamp(min=1)[:, None, None].expand(-1, maxima.shape[1], -1)  # (D, C, 1)
        return torch.cat([texts[..., None], maxima[..., 1:], counts.to(maxima.dtype)], dim=2)

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


def _last(roles: Tensor) -> Tensor:
    """Find each input's last token. Shapes: (…, S) of `Role` -> (…, 1)."""
    places = torch.arange(roles.shape[-1], device=roles.device)  # (S,)
    return (places * (roles != Role.PADDING)).amax(dim=-1, keepdim=True)


def _ends(features: Features) -> tuple[Tensor, Tensor]:
    """Take the vectors of each input's first and last token. Shapes: (…, S, K) -> (…, K) twice."""
    last = _last(features.token_roles)[..., None].expand(
        *features.vectors.shape[:-2], 1, features.vectors.shape[-1]
    )
    return features.vectors[..., 0, :], features.vectors.gather(-2, last).squeeze(-2)


def _are_between(roles: Tensor) -> Tensor:
    """Whether a token is between its input's first and last one. Shapes: (…, S) of `Role` -> (…, S)."""
    places = torch.arange(roles.shape[-1], device=roles.device)  # (S,)
    return (places > 0) & (places < _last(roles))
