"""BigBird: blocks see their neighbours and an input's first and last block, which see all.

transformers switches a model from block-sparse to full attention at its first input of at most 704 tokens,
and never back; here a ranker has one kind of attention permanently. In transformers, block-sparse attention
also depends on the padded length: all tokens read the last block, which changes with a longer input in the
batch. Here the last block is always that of the input itself. In evaluation transformers has no random
blocks: the first block replaces each of them. In training they depend only on layer and length.

`blocks_of`, `sees` and `added` define the attention; the dense form for traced graphs and the packed form use
them. Padded batches use transformers' own sparse attention.

Source: Zaheer et al., NeurIPS 2020.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils._pytree import tree_map

from farrank_rankers.backbones.bert import PackedBert, attend_seen, first_alone
from farrank_rankers.backbones.forms import Forms, Replacement
from farrank_rankers.packed.packed_backbone import PackedArguments
from farrank_rankers.packed.pattern import EVERY_TOKEN, Pattern
from farrank_rankers.spec import RankerSpec
from farrank_rankers.tokens import Role

# [CLS] query [SEP] chunk [SEP], or one text framed in this way.
SPECIAL_TOKENS = {"pair": 3, "dual": 2}


def attention_type(spec: RankerSpec, config: Any) -> Literal["original_full", "block_sparse"]:
    """Choose the attention for all inputs of a ranker: sparse if the longest needs it and positions suffice.

    `config` is transformers' configuration of the backbone.
    """
    query = max(spec.max_query_tokens, spec.pad_query_to or 0)
    window = min(spec.chunking.window, spec.chunking.max_document_tokens)
    texts = query + window if spec.plan == "pair" else max(query, window)
    longest = SPECIAL_TOKENS[spec.plan] + texts
    shortest_sparse = shortest_sparse_input(config)
    fits = shortest_sparse <= config.max_position_embeddings
    if config.attention_type == "block_sparse" and fits and longest > shortest_sparse - config.block_size:
        return "block_sparse"
    return "original_full"


def prepare(spec: RankerSpec, config: Any) -> None:
    """Fix the attention."""
    config.attention_type = attention_type(spec, config)


def shortest_sparse_input(config: Any) -> int:
    """Count the tokens of the shortest input of whole blocks that transformers reads sparsely (768)."""
    blocks: int = 5 + 2 * config.num_random_blocks + 1
    return blocks * int(config.block_size)


class Blocks(NamedTuple):
    """The blocks of tokens: their numbers, whether a block is its input's first or last, and two factors.

    They are factors to multiply by because compiled masks and scores should not branch. Shapes: any, the same
    for all.
    """

    number: Tensor
    outer: Tensor
    inner: Tensor
    repeated: Tensor


def blocks_of(places: Tensor, last_places: Tensor, config: Any) -> Blocks:
    """Find the blocks of tokens at `places` in inputs that end at `last_places`, padding inside included.

    An input's last block is that of its last token, or the last of the shortest input that is read sparsely.
    """
    size = int(config.block_size)
    number = places // size
    last = (last_places // size).clamp(min=shortest_sparse_input(config) // size - 1)
    outer = (number == 0) | (number == last)
    # Being seen n times equals being seen once with n times the weight.
    repeated = (number == 0) * math.log(1 + config.num_random_blocks)
    return Blocks(number, outer, (~outer).to(repeated.dtype), repeated)


def sees(own: Blocks, other: Blocks) -> Tensor:
    """Whether tokens of one block see tokens of another."""
    return ((own.number - other.number).abs() <= 1) | own.outer | other.outer


def added(own: Blocks, other: Blocks) -> Tensor:
    """The bias of a pair's score: inner blocks see the first block once more for each random block."""
    return own.inner * other.repeated


def each_at_its_own_length(backbone: nn.Module, roles: Tensor, inputs: Mapping[str, Any]) -> Any:
    """Call BigBird once for each number of blocks among the inputs, each padded to its own.

    The number of calls depends on the inputs' lengths, which is impossible in a traced graph: see
    `dense_attention`.
    Shapes: roles (P, L) -> last_hidden_state (P, L, H) or logits (P, labels).
    """
    model: Any = getattr(backbone, "base_model", backbone)
    if model.attention_type == "original_full":
        return backbone(**inputs)
    block = model.config.block_size
    ends = torch.arange(1, roles.shape[1] + 1, device=roles.device) * (roles != Role.PADDING)  # (P, L)
    lengths = (ends.amax(dim=1) + block - 1) // block * block  # (P,)
    lengths = lengths.clamp(min=shortest_sparse_input(model.config))  # (P,)
    groups, outputs = [], []
    for length in lengths.unique().tolist():
        rows = (lengths == length).nonzero()[:, 0]  # (R,)
        resized = {
            name: pad(value[rows], (0, length - value.shape[1])) if isinstance(value, Tensor) else value
            for name, value in inputs.items()
        }
        if "position_ids" not in inputs:
            # The last block may reach beyond the table of positions; nothing reads its values there.
            last = int(model.config.max_position_embeddings) - 1
            positions = torch.arange(length, device=roles.device).clamp(max=last)  # (R's L,)
            resized["position_ids"] = positions.expand_as(resized["input_ids"])
        state = np.random.get_state()  # transformers seeds numpy's global generator in every sparse layer
        try:
            outputs.append(backbone(**resized))
        finally:
            np.random.set_state(state)
        groups.append(rows)
    order = torch.cat(groups).argsort()  # (P,)

    def joined(*values: Tensor) -> Tensor:
        """Put rows back in order, and token vectors at the batch's length. Shapes: (R, …) each -> (P, …)."""
        if values[0].dim() == 3:  # not logits; values beyond the batch's length are cut off
            values = tuple(pad(each, (0, 0, 0, roles.shape[1] - each.shape[1])) for each in values)
        return torch.cat(values).index_select(0, order)

    return tree_map(joined, *outputs)


class DenseBigBird(nn.Module):
    """A layer's attention over all pairs under a mask; the signature is that of full attention."""

    def __init__(self, sparse: Any, config: Any) -> None:
        super().__init__()
        self.sparse = sparse
        self.config = config

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **_unused: Any
    ) -> tuple[Tensor, None]:
        """Shapes: (P, L, H), (P, 1, 1 or L, L) -> (P, L, H)."""
        own = self.sparse
        # transformers' mask has biases, or booleans.
        keys = hidden_states.new_zeros(hidden_states.shape[:2])  # (P, L)
        if attention_mask is not None:
            keys = attention_mask[:, 0, 0]  # (P, L)
        real = keys if keys.dtype == torch.bool else keys == 0  # (P, L)
        places = torch.arange(real.shape[1], device=real.device).expand_as(real)  # (P, L)
        last = (places * real).amax(dim=1, keepdim=True)  # (P, 1)
        blocks = blocks_of(places, last, self.config)  # (P, L)
        rows = Blocks(*(each[:, :, None] for each in blocks))  # (P, L, 1)
        columns = Blocks(*(each[:, None] for each in blocks))  # (P, 1, L)
        seen = sees(rows, columns) & real[:, None]  # (P, L, L)
        layers = (own.query, own.key, own.value)
        mixed = attend_seen(hidden_states, layers, own.num_attention_heads, seen, added(rows, columns))
        return mixed, None


def dense_layers(model: Any) -> Iterator[Replacement]:
    """Replace the attention of a sparse model's layers; a full one can be traced as it is."""
    if model.attention_type != "block_sparse":
        return
    for layer in model.encoder.layer:
        yield Replacement(layer.attention, "self", DenseBigBird(layer.attention.self, model.config))
        yield Replacement(layer.attention, "attention_type", "original_full")
    yield Replacement(model, "attention_type", "original_full")


class PackedBigBird(PackedBert):
    """A transformers BigBird, sparse or full, as built. Shapes: T tokens -> last_hidden_state (T, H)."""

    def shared(self, given: PackedArguments, hidden: Tensor) -> Pattern:
        """Make the pattern of blocks in evaluation."""
        if self.model.attention_type != "block_sparse":
            return EVERY_TOKEN
        stream, config = given.stream, self.model.config
        last = stream.places.index_select(0, stream.bounds.offsets[1:] - 1)  # (P,)
        blocks = blocks_of(stream.places, last.index_select(0, stream.inputs), config)  # (T,)

        def at(tokens: Tensor) -> Blocks:
            return Blocks(*(each[tokens] for each in blocks))

        def sees_in_stream(batch: Tensor, head: Tensor, own: Tensor, other: Tensor) -> Tensor:
            return sees(at(own), at(other))

        def rescored(score: Tensor, batch: Tensor, head: Tensor, own: Tensor, other: Tensor) -> Tensor:
            return score + added(at(own), at(other))

        size = int(config.block_size)
        return Pattern(
            sees=sees_in_stream, rescored=rescored, near=2 * size - 1, far_seen=size, far_seen_last=size
        )


BIG_BIRD = Forms(
    prepare=prepare, call=each_at_its_own_length, packed=PackedBigBird, head=first_alone, dense=dense_layers
)
