"""The bounds of sentences in texts of any language, also in code, lists and wrapped lines.

A sentence never crosses the end of a block of lines. Within a block, ICU finds the bounds (Unicode Standard
Annex 29, "Unicode Text Segmentation"), and a few of them are dropped or added, as below.

Blocks. The end of a line ends a block, unless the next line continues it. It does if

- both lines have the same margin: the white space, bars, `>`, `#`, `//` and `--` at their beginning, as in
  comments, quotations and indented documentation (a list item's following lines may be indented deeper);
- the next line does not open an item: it has no bullet, number, prompt (`>>>`, `$`), table bar or decorator;
- the line was wrapped: the next line's first word would not have fit into the longest line of the paragraph,
  and that has at least 40 characters. So prose that an editor wrapped is joined, and code, verse, lists and
  tables have bounds at line ends. A line of five or more plain words is prose, too, however ragged it was
  wrapped by hand: a small letter continues it;
- the line does not end like code, in `{`, `}`, `;`, a bar or a backslash, and is not between ``` fences.

Bounds that are dropped: after a common abbreviation, an initial, or a number of one or two digits with a
period (German ordinals, numbers of items). An opening quotation mark at the end of a sentence belongs to the
next one. Bounds that are added: Thai, Lao, Khmer and Burmese end sentences with a space, so each space
between two of their letters is a bound, unless the sentence is still short. No sentence is longer than
`LONGEST` characters; a longer one is divided at a space.
"""

import re
from collections.abc import Iterator
from itertools import pairwise

from icu4py.breakers import SentenceBreaker

# The characters of the longest sentence: more than a person reads as one.
LONGEST = 1000

# A narrower paragraph has too few words in a line to tell wrapped lines from short ones.
_NARROWEST = 40

# Thai has no mark at the end of a sentence, and spaces between clauses, too: a shorter piece is no sentence.
_SHORTEST_OF_SPACED = 30

_MARGIN = re.compile(r"[ \t\u3000]*(?:(?!>>>)(?:[|>#]+|//+|--(?=\s))[ \t]*)*")
_ITEM = re.compile(
    r"(?:[-*+•‣◦▪–—·]|\(?(?:\d{1,3}|[A-Za-z])[.)]|[①-⑳]|>>>|\.\.\.|\$|@|\|)(?:\s|$)|@\w|\||[=~-]{3,}|```"
)
_ENDS_LIKE_CODE = ("{", "}", ";", "\\", "|")
_FENCE = "```"
_PLAIN_WORD = r"[\"'“‘(]?[^\W\d_]+(?:[-'’/][^\W\d_]+)*[,\"'”’)]?"
_PLAIN_WORDS = re.compile(rf"{_PLAIN_WORD}(?: +{_PLAIN_WORD}){{4,}}")

# Words whose period seldom ends a sentence, though a capital or a digit may follow. ICU has such lists for
# single languages only, short ones.
_ABBREVIATIONS = frozenset(
    word
    for line in (
        "Dr Mr Mrs Ms Prof Rev Hon Gen Col Capt Lt Sgt Gov Sen Rep Pres St Mt Ft vs No Nos Fig Figs Eq Eqs",
        "Sec Ch Vol pp cf al approx Inc Ltd Corp",
        "Hr Fr Frl bzw ca Ca Abs Abb Str Tel Nr Kap Mio Mrd Dipl Ing",
        "M MM Mme Mlle Mmes Mgr art chap env",
        "Sr Sra Srta Dra Ud Uds EE núm pág págs",
        "г гг ул пр им см стр рис табл тыс млн млрд руб проф акад",
        "डॉ श्री प्रो",
        "د أ",
    )
    for word in line.split()
)
_LAST_WORD = re.compile(r"(?:^|[\s.(\"'])([^\W\d_][^\s.\d(]*|\d{1,2})\.[\"'”’)\]]*\s*$")
# The end of a sentence that these two are looked for in.
_TAIL = 24
_OPENING = re.compile(r"[“‘„«「『（《〈【¿¡(\[{]+$")
_SPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
_SPACE_OF_SPACED = re.compile(rf"(?<=[{_SPACED}])[ \u00a0]+(?=[{_SPACED}])")
# A mark that may end a sentence before the end of an ASCII text: white space follows, after quotation marks.
_ENDS_SENTENCE = re.compile(r"[.!?][^\sA-Za-z0-9]*\s+\S")
_SPACE = re.compile(r"\s")


def sentences(text: str) -> list[tuple[int, int]]:
    """Find the sentences of a text: start and end of each, in code points, without white space around them.

    Sentences do not overlap, and hold every character that is no white space and no margin of a line. Parts
    without a letter or digit, such as rules and fences, are left out.
    """
    found: list[tuple[int, int]] = []
    for start, end, joined in _blocks(text):
        for begin, close in _in_block(joined):
            # The end of a block may be shorter than its lines: margins are blanked, not removed.
            own = joined[begin:close]
            begin += len(own) - len(own.lstrip())
            close = begin + len(own.strip())
            if any(map(str.isalnum, joined[begin:close])):
                found.append((start + begin, min(end, start + close)))
    return found


def _blocks(text: str) -> Iterator[tuple[int, int, str]]:
    """Divide a text into blocks: start, end, and their text with line ends and later margins as spaces."""
    lines: list[tuple[int, int, str]] = []  # start, start of the content, the line without its end
    start, fenced = 0, False
    for line in text.splitlines(keepends=True):
        content = line.rstrip()
        margin = _MARGIN.match(content)
        inner = margin.end() if margin else 0
        is_fence = content.startswith(_FENCE, inner)
        if not content[inner:] or is_fence or fenced:
            yield from _joined(text, lines)
            lines = []
            fenced ^= is_fence
            if content[inner:] and not is_fence:
                yield start + inner, start + len(content), content[inner:]
        else:
            lines.append((start, start + inner, content))
        start += len(line)
    yield from _joined(text, lines)


def _joined(text: str, lines: list[tuple[int, int, str]]) -> Iterator[tuple[int, int, str]]:
    """Join the lines of a paragraph that continue each other."""
    if not lines:
        return
    longest = max(len(content) for _, _, content in lines)
    block = [lines[0]]
    for before, line in pairwise(lines):
        if not _continues(block[0], before, line, longest):
            yield _block(text, block)
            block = []
        block.append(line)
    yield _block(text, block)


def _continues(
    first: tuple[int, int, str], before: tuple[int, int, str], line: tuple[int, int, str], longest: int
) -> bool:
    """Whether a line continues the block of the line before it."""
    (start, inner, content), (begin, own_inner, own) = before, line
    margin, own_margin = content[: inner - start], own[: own_inner - begin]
    words = own[len(own_margin) :]
    opened = _ITEM.match(first[2], first[1] - first[0])
    deeper = opened is not None and before is first and len(own_margin) > len(margin)
    if (own_margin != margin and not deeper) or _ITEM.match(words) or content.endswith(_ENDS_LIKE_CODE):
        return False
    if words[0].islower() and _PLAIN_WORDS.fullmatch(content, inner - start):
        return True
    word = _SPACE.split(words, maxsplit=1)[0]
    # A language without spaces is wrapped at any character.
    needed = 1 if len(word) > longest // 2 else 1 + len(word)
    return longest >= _NARROWEST and len(content) + needed > longest


def _block(text: str, lines: list[tuple[int, int, str]]) -> tuple[int, int, str]:
    """Blank the line ends and margins between the lines of a block; the length stays the same."""
    start, end = lines[0][1], lines[-1][0] + len(lines[-1][2])
    parts = [lines[0][2][lines[0][1] - lines[0][0] :]]
    reached = start + len(parts[0])
    for begin, inner, content in lines[1:]:
        parts += [" " * (inner - reached), content[inner - begin :]]
        reached = begin + len(content)
    return start, end, "".join(parts)


def _in_block(text: str) -> Iterator[tuple[int, int]]:
    """Divide a block, without line ends, into sentences with the white space behind them."""
    if len(text) <= LONGEST and text.isascii() and not _ENDS_SENTENCE.search(text):
        # Most lines of code: ICU would find nothing.
        yield 0, len(text)
        return
    begin = end = 0
    # Not `segments`: it counts UTF-16 units.
    for segment in SentenceBreaker(text, "en"):
        end += len(segment)
        if end < len(text):
            own = text[max(begin, end - _TAIL) : end]
            last = _LAST_WORD.search(own)
            if last and (len(last[1]) == 1 or last[1].isdigit() or last[1] in _ABBREVIATIONS):
                continue
            opening = _OPENING.search(own)
            close = end - len(opening[0]) if opening else end
            if close > begin:
                yield from _not_too_long(text, begin, close)
                begin = close
    if begin < len(text):
        yield from _not_too_long(text, begin, len(text))


def _not_too_long(text: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Divide a sentence at spaces of languages that end sentences so, and one that is too long anywhere."""
    for space in _SPACE_OF_SPACED.finditer(text, begin, end) if not text.isascii() else ():
        if space.start() - begin >= _SHORTEST_OF_SPACED <= end - space.end():
            yield from _cut(text, begin, space.end())
            begin = space.end()
    yield from _cut(text, begin, end)


def _cut(text: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
    while end - begin > LONGEST:
        space = text.rfind(" ", begin + LONGEST // 2, begin + LONGEST)
        cut = begin + LONGEST if space < 0 else space + 1
        yield begin, cut
        begin = cut
    yield begin, end
