"""How each architecture is called: an explicit registry by model_type."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from farrank_rankers.backbones.big_bird import each_at_its_own_length
from farrank_rankers.backbones.longformer import with_global_attention

# Called with the backbone, the roles of its inputs' positions (P, L), and the backbone's own keywords.
Call = Callable[[nn.Module, Tensor, Mapping[str, Any]], Any]


def call_named(model_type: str) -> Call:
    """Look up how an architecture is called; most are called as they are."""
    return CALLS.get(model_type, as_it_is)


def as_it_is(backbone: nn.Module, roles: Tensor, inputs: Mapping[str, Any]) -> Any:
    """Call a backbone that does with each position what the others do."""
    return backbone(**inputs)


def without_cache(backbone: nn.Module, roles: Tensor, inputs: Mapping[str, Any]) -> Any:
    """Call a decoder that would keep keys and values for tokens to come, of which there are none."""
    return backbone(**inputs, use_cache=False)


CALLS: Mapping[str, Call] = {
    "big_bird": each_at_its_own_length,
    "llama": without_cache,
    "longformer": with_global_attention,
}
