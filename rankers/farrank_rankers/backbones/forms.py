"""The forms in which an architecture is run: called on padded batches, packed, and changed for graphs.

Each architecture is one file of this folder, which ends with its `Forms`, and one row of
`facts.ARCHITECTURES`, which names them. The file is imported when a backbone of its kind is built.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from farrank_rankers.backbone_facts import ARCHITECTURES
from farrank_rankers.packed.packed_backbone import (
    Compile,
    PackedBackbone,
    PackedOutput,
    PackedTransformer,
    Reading,
    as_written,
)
from farrank_rankers.packed.stream import TokenStream

# Called with the backbone, the roles of its inputs' positions (P, L), and the backbone's own keywords.
Call = Callable[[nn.Module, Tensor, Mapping[str, Any]], Any]
# Called with a transformers classifier, a stream and its last vectors (T, H); gives logits (P, labels).
Head = Callable[[Any, TokenStream, Tensor], Tensor]


class Replacement(NamedTuple):
    """A module or method of a backbone, and what stands in for it for a while."""

    owner: Any
    name: str
    value: Any


# Called with a transformers model without its head.
Replace = Callable[[Any], Iterable[Replacement]]


def as_it_is(backbone: nn.Module, roles: Tensor, inputs: Mapping[str, Any]) -> Any:
    """Call a backbone that treats all positions alike."""
    return backbone(**inputs)


def nothing(model: Any) -> Iterable[Replacement]:
    """Replace nothing."""
    return ()


@dataclass(frozen=True, slots=True)
class Forms:
    """How an architecture is called, and what else can be made of it; the defaults fit most of transformers.

    `packed` reads streams, `packed_in_classifier` below a classifier where that differs; `head` makes logits
    of a stream. `packs_unfused` says that streams are faster even where no fused kernel attends. `dense`
    lists what must be replaced for a graph with a length of its own, `first_tokens` what lets the last layer
    compute first tokens only, (P, 1, H).
    """

    call: Call = as_it_is
    packed: type[PackedTransformer] | None = None
    packed_in_classifier: type[PackedTransformer] | None = None
    head: Head | None = None
    packs_unfused: bool = False
    dense: Replace = nothing
    first_tokens: Replace = nothing


def forms_of(architecture: str) -> Forms:
    """Import the forms of an architecture; those without a file of their own are called as they are."""
    row = ARCHITECTURES.get(architecture)
    if row is None or not row.forms:
        return Forms()
    module, _, name = row.forms.partition(":")
    return getattr(import_module(f"{__package__}.{module}"), name)


def packed_backbone(
    backbone: Any, architecture: str, compile_by: Compile = as_written
) -> PackedBackbone | None:
    """Put a packed form on a backbone's weights; None if it must be given padded batches.

    That is so of an architecture that has no packed form, and of a variant that computes something else.
    """
    forms = forms_of(architecture)
    base = getattr(backbone, "base_model", backbone)
    form, head = forms.packed, None
    if base is not backbone:
        form, head = forms.packed_in_classifier or form, forms.head
        if head is None:
            return None
    if form is None or not form.serves(base):
        return None
    packed = form(base, compile_by)
    if head is None:
        return packed

    def with_head(given: Reading) -> PackedOutput:
        """Add logits (P, labels)."""
        output = packed(given)
        return output._replace(logits=head(backbone, output.tokens, output.last_hidden_state))

    return with_head


def dense_attention(backbone: nn.Module) -> AbstractContextManager[None]:
    """Let sparse attention compute all pairs under a mask for a while; other backbones stay as they are.

    For tracing: transformers takes lengths apart in Python and looks at masks' values, which no graph with a
    length of its own can hold. The vectors are the same, the cost grows with the square of the length. For
    inference: nothing is dropped out, and BigBird has the blocks that it has in evaluation. Masks are
    those of `added_mask`.
    """
    return _replaced(backbone, lambda forms: lambda model: (*_added_masks(model), *forms.dense(model)))


def _added_masks(model: Any) -> Iterator[Replacement]:
    """Replace what makes masks in a model's module of transformers, since release 5."""
    module = sys.modules[type(model).__module__]
    makers = {
        "create_bidirectional_mask": added_mask,
        "create_bidirectional_sliding_window_mask": added_window_mask,
    }
    yield from (Replacement(module, name, maker) for name, maker in makers.items() if hasattr(module, name))


def added_mask(
    config: Any, inputs_embeds: Tensor, attention_mask: Tensor | None, **_unused: Any
) -> Tensor | None:
    """Give 0 for tokens and the lowest number for padding, as transformers 4 does.

    In 5 masks are of truth. In ONNX torch then looks at every weight for rows in which nothing is seen, and
    finds each pair's mask by its index: OpenVINO and ONNX Runtime took a tenth longer (MiniLM-L6).
    Shapes: (P, L, H), (P, L) -> (P, 1, 1, L).
    """
    if attention_mask is None:
        return None
    dtype = inputs_embeds.dtype
    return (1 - attention_mask[:, None, None].to(dtype)) * torch.finfo(dtype).min


def added_window_mask(
    config: Any, inputs_embeds: Tensor, attention_mask: Tensor, **_unused: Any
) -> Tensor | None:
    """Likewise where tokens see near ones only. Shapes: (P, L, H), (P, L) -> (P, 1, L, L)."""
    padding = added_mask(config, inputs_embeds, attention_mask)
    if padding is None:
        return None
    places = torch.arange(inputs_embeds.shape[1], device=inputs_embeds.device)  # (L,)
    far = (places[:, None] - places).abs() > config.sliding_window  # (L, L)
    return torch.minimum(padding, far.to(padding.dtype) * torch.finfo(padding.dtype).min)


def last_layer_for_first_tokens(backbone: nn.Module) -> AbstractContextManager[None]:
    """Let a backbone's last layer compute the first tokens only, (P, 1, H), for a while, if it can.

    For inference: nothing is dropped out.
    """
    return _replaced(backbone, lambda forms: forms.first_tokens)


@contextmanager
def _replaced(backbone: nn.Module, chosen: Callable[[Forms], Replace]) -> Iterator[None]:
    """Put an architecture's replacements in, and what was there back again, whatever happens."""
    model: Any = getattr(backbone, "base_model", backbone)
    forms = forms_of(getattr(model.config, "model_type", ""))
    with ExitStack() as restore:
        for owner, name, value in chosen(forms)(model):
            if name in vars(owner) or name in owner._modules:
                restore.callback(setattr, owner, name, getattr(owner, name))
            else:  # a method: the class still has it
                restore.callback(delattr, owner, name)
            setattr(owner, name, value)
        yield
