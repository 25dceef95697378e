"""Where a long text may be cut so that its segments give exactly the tokens of the whole."""

import json
import re
from collections.abc import Iterator
from typing import Any

# Characters a segment has at least: tokenizing this many takes some 20 ms.
SEGMENT_CHARACTERS = 32_768

# The matched character begins the next segment, so that a run of white space is never torn and byte-level
# tokenizers find the space that belongs to the next word. Control characters that Python counts as white
# space are left out: some normalizers drop them and join the words on both sides.
_BEFORE_WHITE_SPACE = re.compile(r"(?<=\S)[ \t\n\r]")
_BEFORE_SPACE = re.compile(r"(?<=\S) ")


def cut_pattern(tokenizer_json: str) -> re.Pattern[str] | None:
    """Choose where a tokenizer's texts may be cut, from how it splits words: None is nowhere.

    Only pre-tokenizers known to end a word at white space allow a cut; a tokenizer that merges across words
    (as some BPE models without a pre-tokenizer do) reads a text whole, however long.
    """
    step: dict[str, Any] | None = json.loads(tokenizer_json).get("pre_tokenizer")
    while step and step["type"] == "Sequence":
        step = step["pretokenizers"][0]
    match step:
        case {"type": "BertPreTokenizer" | "Whitespace" | "WhitespaceSplit"}:
            return _BEFORE_WHITE_SPACE
        case {"type": "ByteLevel", "use_regex": True}:
            return _BEFORE_WHITE_SPACE
        case {"type": "Metaspace", "split": True}:
            return _BEFORE_SPACE
        case _:
            return None


def segments(text: str, pattern: re.Pattern[str] | None) -> Iterator[tuple[int, str]]:
    """Yield (offset in characters, segment) of at least SEGMENT_CHARACTERS each but the last; none is empty.

    A stretch without a place to cut makes its segment longer.
    """
    start = 0
    while start < len(text):
        found = pattern.search(text, start + SEGMENT_CHARACTERS) if pattern else None
        end = found.start() if found else len(text)
        yield start, text[start:end]
        start = end
