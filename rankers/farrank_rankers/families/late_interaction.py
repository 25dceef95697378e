"""PARADE with late interaction: query and chunks, encoded apart, are read together by a small transformer."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from farrank_rankers.aggregate import Aggregate, Aggregator, check_chunks, leave_one_out
from farrank_rankers.backbones.build_backbone import build_backbone, transformers_config
from farrank_rankers.backbones.facts import BackboneFacts
from farrank_rankers.encoder import Encoder
from farrank_rankers.errors import SpecError
from farrank_rankers.families.parade_transformer import Part, VectorTransformer, check_chunk_positions
from farrank_rankers.families.passages import Head
from farrank_rankers.family import EvidenceKind, LateInteractionOptions, TransformerShape
from farrank_rankers.features import Features, Layout
from farrank_rankers.spec import RankerSpec
from farrank_rankers.tokens import Role

# Positions that the interaction reads at once: its activations take some 200 MB at a width of 768.
GROUP_POSITIONS = 2**14


class TokenEncoder(Encoder):
    """Encode a query or a chunk as the last layer's vectors of all its tokens.

    Shapes: input_ids, roles, token_type_ids (P, L) -> (P, L, H).
    """

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__(build_backbone(spec, config), BackboneFacts.from_config(config))

    def read(self, output: Any, tokens: Layout) -> Features:
        """Shapes: last_hidden_state (…, H) -> (…, H)."""
        return Features(output.last_hidden_state, tokens.roles)


class LateInteraction(Aggregator):
    """PARADE Transf-PRETR-LATEIR: a transformer reads each chunk with the query, another what comes of that.

    v_i = Int(C, S, q_1 … q_Q, S, t_1 … t_T, S)[0] for the tokens t of chunk i, and the score is
    F(Agg(C', S', v_1 … v_m, S')[0]).
    Only the tokens of the texts take part, not the special ones around them. Segment ids are 0 throughout in
    the interaction, as in the published code; 1 for the chunks and 0 for all else in the aggregator. An
    interaction belongs to its chunk alone: the evidence leaves chunks out of the aggregator only.

    Shapes: features (D, C, T, H), chunk_mask (D, C), query (D, Q, H) -> scores (D,), chunk_scores (D, C).
    Raises: SpecError if texts may exceed the transformers' positions; ValueError if a document has no chunk
    or the query is None.
    Source: Boytsov et al. (PARADE-LATEIR), after MORES+ of Gao & Callan, 2022.
    """

    evidence = EvidenceKind.LEAVE_ONE_OUT

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__()
        if not isinstance(spec.options, LateInteractionOptions):
            raise SpecError(f"options are {type(spec.options).__name__}; they must be LateInteractionOptions")
        options = spec.options
        check_text_positions(spec, options.interaction, beside=4 if options.use_separators else 1)
        check_chunk_positions(spec, options.transformer, beside=3 if options.use_separators else 1)
        hidden_size = transformers_config(config).hidden_size
        self.interaction = VectorTransformer(hidden_size, options.interaction, options.use_separators)
        self.transformer = VectorTransformer(
            options.interaction.width, options.transformer, options.use_separators
        )
        self.head = Head(options.transformer.width)

    def forward(self, features: Features, chunk_mask: Tensor, query: Features | None = None) -> Aggregate:
        """Shapes: (D, C, T, H), (D, C), (D, Q, H) -> (D,), (D, C)."""
        check_chunks(chunk_mask)
        if query is None:
            raise ValueError("query is None; late interaction reads chunks with the query's vectors")
        chunks = self._interact(features, chunk_mask, query)  # (D, C, W)

        def score(masks: Tensor) -> Tensor:
            scores: Tensor = self.head(self.transformer.under(masks, chunks))  # (V, D)
            return scores

        return leave_one_out(score, chunk_mask)

    def _interact(self, features: Features, chunk_mask: Tensor, query: Features) -> Tensor:
        """Read each chunk with its document's query, some at a time; a traced graph reads all at once.

        Shapes: (D, C, T, H), (D, C), (D, Q, H) -> (D, C, W), zero or meaningless where there is no chunk.
        """
        if features.roles is None or query.roles is None:
            raise ValueError("features have no roles; late interaction reads vectors of tokens")
        of_query = query.roles == Role.QUERY  # (D, Q)
        of_chunk = (features.roles == Role.DOCUMENT) & chunk_mask[:, :, None]  # (D, C, T)
        if torch.compiler.is_compiling():
            rows = torch.arange(chunk_mask.numel(), device=chunk_mask.device)  # (D·C,)
            document = rows // chunk_mask.shape[1]  # (D·C,)
            asked = Part(query.vectors.index_select(0, document), of_query.index_select(0, document))
            read = Part(features.vectors.flatten(0, 1), of_chunk.flatten(0, 1))
            interacted: Tensor = self.interaction(asked, read)  # (D·C, W)
            return interacted.reshape(*chunk_mask.shape, -1)
        documents, columns = chunk_mask.nonzero(as_tuple=True)  # (N,) each
        positions = features.roles.shape[2] + query.roles.shape[1]
        vectors = []
        group = max(1, GROUP_POSITIONS // positions)
        for start in range(0, len(documents), group):
            document, column = documents[start : start + group], columns[start : start + group]  # (G,) each
            asked = Part(query.vectors[document], of_query[document])
            read = Part(features.vectors[document, column], of_chunk[document, column])
            vectors.append(self.interaction(asked, read))  # (G, W)
        joined = torch.cat(vectors)  # (N, W)
        return joined.new_zeros(*chunk_mask.shape, joined.shape[1]).index_put((documents, columns), joined)


def check_text_positions(spec: RankerSpec, shape: TransformerShape, beside: int) -> None:
    """Refuse queries and windows that an interaction cannot place, with `beside` positions for all else.

    Raises: SpecError naming the fields and the limit.
    """
    window = min(spec.chunking.window, spec.chunking.max_document_tokens)
    needed = spec.max_query_tokens + window + beside
    if needed > shape.positions:
        raise SpecError(
            f"chunking.window is {spec.chunking.window} and max_query_tokens {spec.max_query_tokens}: with "
            f"{beside} special vectors that makes {needed} positions; the interaction has {shape.positions}"
        )
