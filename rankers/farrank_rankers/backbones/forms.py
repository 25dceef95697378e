"""The forms of an architecture: for padded batches, for packed streams, and for traced graphs.

Each architecture is one file of this folder, which ends with its `Forms`, and one row of
`facts.ARCHITECTURES`, which names them. The file is imported when such a backbone is built.
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
    PackedArguments,
    PackedBackbone,
    PackedOutput,
    PackedTransformer,
    as_written,
)
from farrank_rankers.packed.stream import TokenStream
from farrank_rankers.spec import RankerSpec

# Called with the backbone, the roles of its inputs' positions (P, L), and the backbone's own keywords.
Call = Callable[[nn.Module, Tensor, Mapping[str, Any]], Any]
# Called with a transformers classifier, a stream and its last vectors (T, H); gives logits (P, labels).
Head = Callable[[Any, TokenStream, Tensor], Tensor]


class Replacement(NamedTuple):
    """A module or method of a backbone, and its temporary replacement."""

    owner: Any
    name: str
    value: Any


# Called with a transformers model without its head.
Replace = Callable[[Any], Iterable[Replacement]]


def as_it_is(backbone: nn.Module, roles: Tensor, inputs: Mapping[str, Any]) -> Any:
    """Call a backbone that needs no roles."""
    return backbone(**inputs)


def as_published(spec: RankerSpec, config: Any) -> None:
    """Change nothing."""


def nothing(model: Any) -> Iterable[Replacement]:
    """Replace nothing."""
    return ()


@dataclass(frozen=True, slots=True)
class Forms:
    """The functions that call, pack and change an architecture; the defaults fit most of transformers.

    `prepare` changes transformers' configuration before the backbone is built. `packed` reads streams;
    `packed_in_classifier` does so below a classifier if that differs; `head` makes logits from a stream.
    `packs_unfused`: streams are faster even without a fused attention kernel. `dense` lists the replacements
    for a graph with a free length, `first_tokens` those that let the last layer compute only first tokens,
    (P, 1, H).
    """

    prepare: Callable[[RankerSpec, Any], None] = as_published
    call: Call = as_it_is
    packed: type[PackedTransformer] | None = None
    packed_in_classifier: type[PackedTransformer] | None = None
    head: Head | None = None
    packs_unfused: bool = False
    dense: Replace = nothing
    first_tokens: Replace = nothing


def forms_of(architecture: str) -> Forms:
    """Import the forms of an architecture; architectures without a file have the defaults."""
    row = ARCHITECTURES.get(architecture)
    if row is None or not row.forms:
        return Forms()
    module, _, name = row.forms.partition(":")
    return getattr(import_module(f"{__package__}.{module}"), name)


def packed_backbone(
    backbone: Any, architecture: str, compile_by: Compile = as_written
) -> PackedBackbone | None:
    """Make the packed form on a backbone's weights; None if the backbone needs padded batches.

    None is the result for an architecture without a packed form, and for a variant that computes differently.
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

    def with_head(given: PackedArguments) -> PackedOutput:
        """Add logits (P, labels)."""
        output = packed(given)
        return output._replace(logits=head(backbone, output.tokens, output.last_hidden_state))

    return with_head


def dense_attention(backbone: nn.Module) -> AbstractContextManager[None]:
    """Temporarily let sparse attention compute all pairs under a mask, and other attention take no branches.

    For tracing: transformers' sparse attention computes with lengths in Python and reads masks' values, which
    a graph with a free length cannot. The vectors are the same; the cost grows with the square of the length.
    For inference only: there is no dropout, and BigBird has its blocks of evaluation. Masks are those of
    `added_mask`.
    """
    return _replaced(backbone, lambda forms: lambda model: (*_added_masks(model), *forms.dense(model)))


def _added_masks(model: Any) -> Iterator[Replacement]:
    """Replace the function that makes masks in a model's module of transformers, from release 5."""
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

    In 5 masks are booleans. In ONNX torch then checks every attention weight for rows in which nothing is
    seen, and looks up each pair's mask by its index: OpenVINO and ONNX Runtime took 10% longer (MiniLM-L6).
    Shapes: (P, L, H), (P, L) -> (P, 1, 1, L).
    """
    if attention_mask is None:
        return None
    dtype = inputs_embeds.dtype
    return (1 - attention_mask[:, None, None].to(dtype)) * torch.finfo(dtype).min


def added_window_mask(
    config: Any, inputs_embeds: Tensor, attention_mask: Tensor, **_unused: Any
) -> Tensor | None:
    """Do the same for layers whose tokens see only near ones. Shapes: (P, L, H), (P, L) -> (P, 1, L, L)."""
    padding = added_mask(config, inputs_embeds, attention_mask)
    if padding is None:
        return None
    places = torch.arange(inputs_embeds.shape[1], device=inputs_embeds.device)  # (L,)
    far = (places[:, None] - places).abs() > config.sliding_window  # (L, L)
    return torch.minimum(padding, far.to(padding.dtype) * torch.finfo(padding.dtype).min)


def last_layer_for_first_tokens(backbone: nn.Module) -> AbstractContextManager[None]:
    """Temporarily let a backbone's last layer compute only the first tokens, (P, 1, H), if it can.

    For inference only: there is no dropout.
    """
    return _replaced(backbone, lambda forms: forms.first_tokens)


@contextmanager
def _replaced(backbone: nn.Module, chosen: Callable[[Forms], Replace]) -> Iterator[None]:
    """Install an architecture's replacements for the block, and always restore the originals."""
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
