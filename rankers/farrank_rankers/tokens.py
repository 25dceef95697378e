"""Tokenized texts, chunks, encoder inputs, and batches of inputs of different lengths."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int32]


class Role(enum.IntEnum):
    """The role of a position of an encoder input."""

    PADDING = 0  # nothing: masked everywhere
    SPECIAL = 1  # a special token around texts, or a token of a prefix
    QUERY = 2
    DOCUMENT = 3
    EXPANSION = 4  # a token behind a query that attends to the others, and that no token attends to
    SKIPPED = 5  # a token of a document's input that is read, but whose vector is not compared


@dataclass(frozen=True, slots=True, eq=False)
class TokenizedText:
    """The tokens read of a text, each with its span of characters.

    Shapes: ids, starts, ends (T,); starts and ends count Unicode code points of the original text.
    `characters_cut` counts the characters from the first token that was not kept to the text's end, 0 if all
    tokens were kept. `total_tokens` counts the tokens of the whole text; it is None if the text was cut and
    the count was not requested. `before` and `behind` are tokens of the prompt that were tokenized together
    with a query.
    """

    ids: IntArray
    starts: IntArray
    ends: IntArray
    characters_cut: int
    total_tokens: int | None
    before: IntArray | None = None
    behind: IntArray | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tokens_cut(self) -> int | None:
        """Count the tokens that the text has beyond those kept; None if they were not counted."""
        return None if self.total_tokens is None else self.total_tokens - len(self.ids)


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """A run of a document's tokens, and their characters start..end of the document.

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
    """One row of an encoder's batch, not yet padded to the others.

    Shapes: input_ids, roles (of `Role`), token_type_ids (L,).
    """

    input_ids: IntArray
    roles: IntArray
    token_type_ids: IntArray

    @property
    def tokens(self) -> int:
        """Count positions, including padding inside the query: the cost of encoding the input."""
        return len(self.input_ids)


LongArray = NDArray[np.int64]


class EncoderBatch(NamedTuple):
    """The arguments of an encoder, in the order of its parameters.

    Shapes: each (P, L) int64; roles are those of `tokens.Role`.
    """

    input_ids: LongArray
    roles: LongArray
    token_type_ids: LongArray


def collate(inputs: Sequence[EncoderInput], pad_id: int, *, step: int = 1, at_most: int = 0) -> EncoderBatch:
    """Pad inputs on the right to the longest, and to a multiple of `step` if that is at most `at_most`.

    Raises: ValueError if there is no input.
    """
    if not inputs:
        raise ValueError("inputs is empty; a batch needs at least 1")
    longest = max(item.tokens for item in inputs)
    shape = (len(inputs), max(longest, min(-(-longest // step) * step, at_most)))
    batch = EncoderBatch(*(np.full(shape, filler, dtype=np.int64) for filler in (pad_id, Role.PADDING, 0)))
    for row, item in enumerate(inputs):
        batch.input_ids[row, : item.tokens] = item.input_ids
        batch.roles[row, : item.tokens] = item.roles
        batch.token_type_ids[row, : item.tokens] = item.token_type_ids
    return batch
