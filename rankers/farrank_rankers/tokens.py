"""Texts as tokens: what passes from the reader to whoever batches encoder inputs.

Arrays are shared between these values and must not be written to.
"""

import enum
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int32]


class Role(enum.IntEnum):
    """What a position of an encoder input holds."""

    PADDING = 0  # nothing: masked everywhere
    SPECIAL = 1  # a token that the tokenizer puts around texts, or one of a prefix
    QUERY = 2
    DOCUMENT = 3


@dataclass(frozen=True, slots=True, eq=False)
class TokenizedText:
    """The tokens kept of a text, each with its span of characters.

    Shapes: ids, starts, ends (T,); starts and ends count Unicode code points of the original text.
    `total_tokens` counts the whole text, before the cut.
    """

    ids: IntArray
    starts: IntArray
    ends: IntArray
    total_tokens: int

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tokens_cut(self) -> int:
        """Count the tokens that the text has beyond those kept."""
        return self.total_tokens - len(self.ids)


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """A run of a document's tokens, and the characters start..end of the document that they stand for.

    Shapes: ids (T,). An empty document is one chunk without ids, span 0..0.
    """

    index: int
    ids: IntArray
    start: int
    end: int

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True, eq=False)
class EncoderInput:
    """One row of an encoder's batch, not yet padded to its companions.

    Shapes: input_ids, roles (of `Role`), token_type_ids (L,).
    """

    input_ids: IntArray
    roles: IntArray
    token_type_ids: IntArray

    @property
    def tokens(self) -> int:
        """Count positions, padding inside the query included: what the input costs to encode."""
        return len(self.input_ids)
