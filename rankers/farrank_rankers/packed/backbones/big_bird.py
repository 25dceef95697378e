"""BigBird: BERT's layers, in which blocks see their neighbours and an input's outer two, which see all.

Source: Zaheer et al., NeurIPS 2020.
"""

import math
from typing import Any

from torch import Tensor

from farrank_rankers.backbones.big_bird import shortest_sparse_input
from farrank_rankers.packed.attention.pattern import EVERY_TOKEN, Pattern
from farrank_rankers.packed.backbones.bert import PackedBert
from farrank_rankers.packed.backbones.compiling import Compile
from farrank_rankers.packed.stream import TokenStream


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
