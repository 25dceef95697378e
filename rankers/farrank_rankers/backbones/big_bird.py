"""BigBird: its kind of attention is a ranker's for good, and an input's blocks are its own.

transformers switches a model from block-sparse to full attention at its first input of at most 704 tokens,
and never back. Block-sparse attention depends on the padded length, too: the last block is read by all
tokens, and with a longer companion it would be another one. In evaluation transformers has no random blocks:
the first block takes their places once more for each of them. In training they depend on layer and length
alone.

Source: Zaheer et al., NeurIPS 2020.

BigBird: BERT's layers, in which blocks see their neighbours and an input's outer two, which see all.

Source: Zaheer et al., NeurIPS 2020.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from farrank_rankers.backbones.bert import PackedBert
from farrank_rankers.packed.packed_backbone import Compile
from farrank_rankers.packed.pattern import EVERY_TOKEN, Pattern
from farrank_rankers.packed.stream import TokenStream
from farrank_rankers.spec import RankerSpec
from farrank_rankers.tokens import Role

# [CLS] query [SEP] chunk [SEP], or one text in such a frame.
SPECIAL_TOKENS = {"pair": 3, "dual": 2}


def attention_type(spec: RankerSpec, config: Any) -> Literal["original_full", "block_sparse"]:
    """Choose the attention for all inputs of a ranker: sparse if the longest needs it, and there is room.

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


def shortest_sparse_input(config: Any) -> int:
    """Count the tokens of the shortest input of whole blocks that transformers reads sparsely (768)."""
    blocks: int = 5 + 2 * config.num_random_blocks + 1
    return blocks * int(config.block_size)


def each_at_its_own_length(backbone: nn.Module, roles: Tensor, inputs: Mapping[str, Any]) -> Any:
    """Call BigBird once for each number of blocks among the inputs, each padded to its own.

    The output object has the names of transformers' own. How often the model is called depends on the inputs'
    lengths, which a traced graph cannot do: see `dense_attention`.
    Shapes: roles (P, L) -> last_hidden_state (P, L, H) or logits (P, labels).
    """
    model: Any = getattr(backbone, "base_model", backbone)
    if model.attention_type == "original_full":
        return backbone(**inputs)
    block = model.config.block_size
    ends = torch.arange(1, roles.shape[1] + 1, device=roles.device) * (roles != Role.PADDING)  # (P, L)
    lengths = (ends.amax(dim=1) + block - 1) // block * block  # (P,)
    lengths = lengths.clamp(min=shortest_sparse_input(model.config))  # (P,)
    parts: list[tuple[Tensor, Any]] = []
    for length in lengths.unique().tolist():
        rows = (lengths == length).nonzero()[:, 0]  # (R,)
        resized = {
            name: pad(value[rows], (0, length - value.shape[1])) if isinstance(value, Tensor) else value
            for name, value in inputs.items()
        }
        if "position_ids" not in inputs:
            # The last block may reach beyond the table of positions; nothing reads what stands there.
            positions = torch.arange(length, device=roles.device).clamp(max=_last_position(model))  # (R's L,)
            resized["position_ids"] = positions.expand_as(resized["input_ids"])
        with _numpys_random_state_kept():
            parts.append((rows, backbone(**resized)))
    return SimpleNamespace(
        **{
            name: _joined([(rows, output[name]) for rows, output in parts], len(roles), roles.shape[1], name)
            for name in tuple(parts[0][1])
        }
    )


def _joined(parts: Sequence[tuple[Tensor, Any]], inputs: int, length: int, name: str) -> Any:
    """Put rows back in their order, and token vectors at the batch's own length.

    Shapes: (R, …) each -> (P, …).
    """
    first = parts[0][1]
    if isinstance(first, tuple):
        return tuple(
            _joined([(rows, values[index]) for rows, values in parts], inputs, length, name)
            for index in range(len(first))
        )
    of_tokens = name != "logits"
    joined = first.new_zeros((inputs, length, *first.shape[2:]) if of_tokens else (inputs, *first.shape[1:]))
    for rows, values in parts:
        if of_tokens:
            values = pad(values[:, :length], (0, 0, 0, max(0, length - values.shape[1])))  # (R, L, H)
        joined = joined.index_copy(0, rows, values)
    return joined


def _last_position(model: Any) -> int:
    return int(model.config.max_position_embeddings) - 1


@contextmanager
def _numpys_random_state_kept() -> Iterator[None]:
    """Undo that transformers seeds numpy's global generator in every sparse layer."""
    state = np.random.get_state()
    try:
        yield
    finally:
        np.random.set_state(state)


class PackedBigBird(PackedBert):
    """A transformers BigBird, sparse or full, as built. Shapes: T tokens -> last_hidden_state (T, H)."""

    def __init__(self, model: Any, compile_by: Compile) -> None:
        super().__init__(model, compile_by)
        self._is_sparse = model.attention_type == "block_sparse"
        self._block = int(model.config.block_size)
        self._random_blocks = int(model.config.num_random_blocks)
        self._fewest_blocks = shortest_sparse_input(model.config) // self._block

    def pattern(self, stream: TokenStream) -> Pattern:
        """Let blocks see each other as in evaluation: the first one is seen once more for each random one.

        Blocks are of places, padding inside the query included. The last one is that of an input's last
        token, or the last of the shortest input that is read sparsely.
        """
        if not self._is_sparse:
            return EVERY_TOKEN
        blocks = stream.places // self._block  # (T,)
        ends = blocks.index_select(0, stream.segments.offsets[1:] - 1)  # (P,)
        last = ends.clamp(min=self._fewest_blocks - 1).index_select(0, stream.inputs)  # (T,)
        outer = (blocks == 0) | (blocks == last)  # (T,)
        # Seen n times is seen once with n times the weight. Factors, for a mod to multiply: (T,) each.
        repeated = (blocks == 0) * math.log(1 + self._random_blocks)
        inner = (~outer).to(repeated.dtype)

        def sees(batch: Tensor, head: Tensor, own: Tensor, other: Tensor) -> Tensor:
            return ((blocks[own] - blocks[other]).abs() <= 1) | outer[own] | outer[other]

        def rescored(score: Tensor, batch: Tensor, head: Tensor, own: Tensor, other: Tensor) -> Tensor:
            return score + inner[own] * repeated[other]

        return Pattern(
            sees=sees,
            rescored=rescored,
            near=2 * self._block - 1,
            far_seen=self._block,
            far_seen_last=self._block,
        )
