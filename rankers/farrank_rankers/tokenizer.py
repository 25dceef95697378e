"""From text to tokens with offsets, for texts of any length."""

from collections.abc import Callable

import numpy as np

from farrank_rankers.errors import ReadingStopped
from farrank_rankers.files.tokenizer_files import TokenizerFiles
from farrank_rankers.segments import cut_pattern, segments
from farrank_rankers.special_tokens import frames
from farrank_rankers.tokens import IntArray, TokenizedText


class TextTokenizer:
    """A tokenizer opened from its files; several threads may share it.

    `single` and `pair` are the frames it puts around one text and around two. A special token's name inside a
    text ("[SEP]") is read as that token, as transformers does.
    Raises: SourceError if the files hold no usable tokenizer.
    """

    def __init__(self, files: TokenizerFiles) -> None:
        self.files = files
        self.tokenizer = files.open()
        self.single, self.pair = frames(self.tokenizer)
        self._cut = cut_pattern(files.tokenizer_json)

    def pad_id(self, fallback: int | None) -> int:
        """Find the padding token's id, `fallback` if the files name none.

        Raises: SourceError if there is none at all.
        """
        return self.files.pad_id(self.tokenizer, fallback)

    def ids(self, text: str) -> IntArray:
        """Tokenize a short text without special tokens, (T,)."""
        return np.array(self.tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int32)

    def read(self, text: str, limit: int, should_stop: Callable[[], bool] | None = None) -> TokenizedText:
        """Keep a text's first `limit` tokens and count the rest, asking `should_stop` between segments.

        Raises: ReadingStopped if it says yes; ValueError if the text has a lone surrogate.
        """
        ids: list[int] = []
        spans: list[IntArray] = []
        total = 0
        for offset, segment in segments(text, self._cut):
            if offset and should_stop is not None and should_stop():
                raise ReadingStopped(f"stopped after {offset} of {len(text)} characters")
            counted, kept, offsets = self._encode(segment, limit - total)
            total += counted
            if kept:
                ids += kept
                spans.append(np.array(offsets, dtype=np.int32) + offset)
        joined = np.concatenate(spans) if spans else np.empty((0, 2), dtype=np.int32)
        return TokenizedText(
            ids=np.array(ids, dtype=np.int32),
            starts=np.ascontiguousarray(joined[:, 0]),
            ends=np.ascontiguousarray(joined[:, 1]),
            total_tokens=total,
        )

    def _encode(self, segment: str, room: int) -> tuple[int, list[int], list[tuple[int, int]]]:
        """Tokenize a segment: how many tokens it has, and ids and offsets of the first `room`."""
        try:
            # Batches of one: they let other threads run, encode() does not. The fast form has no offsets.
            if room <= 0:
                return len(self.tokenizer.encode_batch_fast([segment], add_special_tokens=False)[0]), [], []
            encoding = self.tokenizer.encode_batch([segment], add_special_tokens=False)[0]
        except TypeError:
            where = next(
                index for index, character in enumerate(segment) if "\ud800" <= character <= "\udfff"
            )
            raise ValueError(
                f"text is not valid Unicode: lone surrogate U+{ord(segment[where]):04X}"
            ) from None
        counted = len(encoding)
        if counted > room:
            encoding.truncate(room)
        return counted, encoding.ids, encoding.offsets
