"""Cutting of texts for a tokenizer, and the tokenizer that continues in the middle of a text."""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tokenizers import Tokenizer

# The patterns with which Qwen2, Qwen3 and Llama 3 split words: a space begins a match, and no match contains
# one later.
_SPACES_BEGIN = frozenset(
    rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{number}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    for number in (r"\p{N}", r"\p{N}{1,3}")
)

# The matched character begins the next piece, so that a run of white space is never split and byte-level
# tokenizers find the space that belongs to the next word. Control characters that Python counts as white
# space do not match: some normalizers drop them and join the words on both sides.
_BEFORE_WHITE_SPACE = re.compile(r"(?<=\S)[ \t\n\r]")
_BEFORE_SPACE = re.compile(r"(?<=\S) ")


def cut_pattern(tokenizer_json: Mapping[str, Any]) -> re.Pattern[str] | None:
    """Choose where a tokenizer's texts may be cut, by its splitting of words; None means nowhere.

    Only pre-tokenizers known to end a word at white space allow a cut. A text of a tokenizer that merges
    across words, like some BPE models without a pre-tokenizer, is one stretch (see `stretches`).
    """
    step: dict[str, Any] | None = tokenizer_json.get("pre_tokenizer")
    while step and step["type"] == "Sequence":
        step = step["pretokenizers"][0]
    match step:
        case {"type": "BertPreTokenizer" | "Whitespace" | "WhitespaceSplit"}:
            return _BEFORE_WHITE_SPACE
        case {"type": "ByteLevel", "use_regex": True}:
            return _BEFORE_WHITE_SPACE
        case {"type": "Metaspace", "split": True}:
            return _BEFORE_SPACE
        case {"type": "Split", "pattern": {"Regex": regex}, "invert": False} if regex in _SPACES_BEGIN:
            return _BEFORE_SPACE
        case _:
            return None


class Piece(NamedTuple):
    """A part of a text; if not `is_whole`, the next place safe to cut is not near."""

    start: int
    end: int
    is_whole: bool = True


def next_piece(text: str, start: int, pattern: re.Pattern[str] | None, characters: int, most: int) -> Piece:
    """Give the piece that begins at a place safe to cut; whole pieces have exactly the tokens of the text.

    It has at least `characters` and at most `most` more, except that the text's last piece and one before a
    long stretch without a place to cut may be shorter.
    """
    end = start + characters
    if end + most >= len(text):
        most = len(text) - end
    cut = find_cut(text, end, end + most, pattern) if most > 0 else None
    if cut is None and end + most >= len(text):
        return Piece(start, len(text))
    if cut is None and pattern is not None:
        # The piece ends before the stretch. A cut at its own beginning would make it empty.
        for found in pattern.finditer(text, start + 1, end):
            cut = found.start()
    return Piece(start, cut) if cut is not None else Piece(start, end, is_whole=False)


def find_cut(text: str, start: int, end: int, pattern: re.Pattern[str] | None) -> int | None:
    """Find the first place in a range where a text may be cut."""
    found = pattern.search(text, start, end) if pattern else None
    return found.start() if found else None


def reading_on(tokenizer: Tokenizer, tokenizer_json: dict[str, Any]) -> Tokenizer | None:
    """Make the tokenizer that begins in the middle of a text: it inserts nothing before the first word.

    None if the tokenizer itself inserts nothing there, or the same before each word, so that it is already
    right for every word. Both share the vocabulary's memory.
    """
    match tokenizer_json.get("pre_tokenizer"):
        case {"type": "Sequence", "pretokenizers": [_, *_, {"type": "Metaspace"}]}:
            return None
    kept = {name: tokenizer_json.get(name) for name in ("normalizer", "pre_tokenizer")}
    changed = {name: _without_prefix(step) for name, step in kept.items()}
    if changed == kept:
        return None
    bare = {"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": []}
    inside = Tokenizer.from_str(json.dumps(tokenizer_json | changed | bare))
    inside.model = tokenizer.model
    added = tokenizer.get_added_tokens_decoder()
    inside.add_tokens([added[token_id] for token_id in sorted(added)])
    if inside.get_added_tokens_decoder() != added:  # their ids are not in order
        inside = Tokenizer.from_str(json.dumps(tokenizer_json | changed))
    inside.no_truncation()
    inside.no_padding()
    return inside


def _without_prefix(step: Any) -> Any:
    """Stop a normalizer or pre-tokenizer from inserting anything before a text."""
    if not isinstance(step, dict):
        return step
    for name in ("normalizers", "pretokenizers"):
        if name in step:
            steps = [_without_prefix(each) for each in step[name]]
            step = step | {name: [each for each in steps if each is not None]}
    match step:
        case {"type": "Prepend"}:
            return None
        case {"type": "ByteLevel", "add_prefix_space": True}:
            return step | {"add_prefix_space": False}
        case {"type": "Metaspace"} if step.get("prepend_scheme") != "never":
            # Files of old releases have another key.
            return {name: value for name, value in step.items() if name != "add_prefix_space"} | {
                "prepend_scheme": "never"
            }
        case _:
            return step
