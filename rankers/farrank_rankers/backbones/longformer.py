"""Longformer: who attends to every token, and is attended to by every token."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from farrank_rankers.tokens import Role


def with_global_attention(backbone: nn.Module, roles: Tensor, inputs: Mapping[str, Any]) -> Any:
    """Call Longformer with global attention on [CLS], the query and the first [SEP].

    A classifier is left to transformers, which gives its first token alone global attention, as in training.
    transformers pads to a multiple of the attention window and masks what it adds.
    Source: Beltagy et al., arXiv 2004.05150 (global attention on the question, for question answering).
    """
    if getattr(backbone, "base_model", backbone) is not backbone:
        return backbone(**inputs)
    mask = global_positions(roles).to(inputs["attention_mask"].dtype)  # (P, L)
    return backbone(**inputs, global_attention_mask=mask)


def global_positions(roles: Tensor) -> Tensor:
    """Mark the first two special tokens of each input, and its query.

    Shapes: (P, L) -> (P, L) bool.
    """
    special = roles == Role.SPECIAL  # (P, L)
    return (special & (special.cumsum(dim=1) <= 2)) | (roles == Role.QUERY)
