"""How a tokenizer frames its texts with special tokens, learned from the tokenizer itself."""

from dataclasses import dataclass

import numpy as np
from tokenizers import Encoding, Tokenizer

from farrank_rankers.errors import SourceError
from farrank_rankers.tokens import IntArray, Role


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """The special tokens around one text (two parts) or a pair (three): part, text, part, text, part.

    Shapes: parts and part_segments, arrays (special tokens there,); text_segments, one segment id a text.
    """

    parts: tuple[IntArray, ...]
    part_segments: tuple[IntArray, ...]
    text_segments: tuple[int, ...]

    @property
    def special_tokens(self) -> int:
        """Count the positions that special tokens take."""
        return sum(len(part) for part in self.parts)

    def ids(self, *texts: IntArray) -> IntArray:
        """Join the ids of texts and special tokens, (L,)."""
        pieces = [self.parts[0]]
        for text, part in zip(texts, self.parts[1:], strict=True):
            pieces += [text, part]
        return np.concatenate(pieces)

    def roles(self, *roles: IntArray) -> IntArray:
        """Give the `Role` of every position of `ids`, from those of the texts' tokens, (L,)."""
        pieces = [np.full(len(self.parts[0]), Role.SPECIAL, dtype=np.int32)]
        for text, part in zip(roles, self.parts[1:], strict=True):
            pieces += [text, np.full(len(part), Role.SPECIAL, dtype=np.int32)]
        return np.concatenate(pieces)

    def segments(self, *texts: IntArray) -> IntArray:
        """Give the segment id of every position of `ids`, (L,)."""
        pieces = [self.part_segments[0]]
        for text, segment, part in zip(texts, self.text_segments, self.part_segments[1:], strict=True):
            pieces += [np.full(len(text), segment, dtype=np.int32), part]
        return np.concatenate(pieces)


def frames(tokenizer: Tokenizer) -> tuple[Frame, Frame]:
    """Read the frame of one text and that of a pair off an example.

    Raises: SourceError if the tokenizer finds no token in a letter.
    """
    return _frame(tokenizer.encode("a"), texts=1), _frame(tokenizer.encode("a", "a"), texts=2)


def _frame(encoding: Encoding, texts: int) -> Frame:
    """Take an encoded example apart: what belongs to no text is the frame."""
    parts: list[list[tuple[int, int]]] = [[] for _ in range(texts + 1)]
    segments: dict[int, int] = {}
    for token, segment, text in zip(encoding.ids, encoding.type_ids, encoding.sequence_ids, strict=True):
        if text is None:
            parts[len(segments)].append((token, segment))
        else:
            segments[text] = segment
    if list(segments) != list(range(texts)):
        raise SourceError("tokenizer.json: the tokenizer finds no token in the text 'a'")
    arrays = [np.array(part, dtype=np.int32).reshape(-1, 2) for part in parts]
    return Frame(
        parts=tuple(part[:, 0] for part in arrays),
        part_segments=tuple(part[:, 1] for part in arrays),
        text_segments=tuple(segments.values()),
    )
