"""The documents that every ranker reads: long ones of a collection."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from farrank_rankers.tokenizer import TextTokenizer
from farrank_trec.errors import InputError
from farrank_trec.lines import json_object, named_string, numbered_lines
from farrank_trec.text_files import DOC_IDS, DOC_TEXTS


@dataclass(frozen=True, slots=True)
class LongDocument:
    """A text, and how many tokens it has."""

    doc_id: str
    text: str
    tokens: int


def documents_of_lengths(
    path: Path, count: int, lengths: Sequence[int], tokenizer: TextTokenizer
) -> list[LongDocument]:
    """Cut a collection's long documents to lengths in tokens, which take turns.

    Raises: InputError naming file and line if the collection is malformed, or holds fewer documents.
    """
    cut = []
    for place, document in enumerate(_long_documents(path, count, max(lengths), tokenizer.count)):
        read = tokenizer.read(document.text, lengths[place % len(lengths)])
        text = document.text[: int(read.ends.max())] if len(read) else document.text
        # Counted anew: a word that is cut in two may have other pieces.
        cut.append(LongDocument(document.doc_id, text, tokenizer.count(text)))
    return cut


def _long_documents(
    path: Path, count: int, at_least: int, count_tokens: Callable[[str], int]
) -> list[LongDocument]:
    """Take the first `count` documents of `at_least` tokens; where they are fewer, the longest others too."""
    shorter: list[LongDocument] = []
    found: list[LongDocument] = []
    for doc_id, text in _documents(path):
        document = LongDocument(doc_id, text, count_tokens(text))
        (found if document.tokens >= at_least else shorter).append(document)
        if len(found) == count:
            return found
    shorter.sort(key=lambda document: -document.tokens)
    found += shorter[: count - len(found)]
    if len(found) < count:
        raise InputError(f"{path}: holds {len(found):,} documents; {count:,} are asked for")
    return found


def _documents(path: Path) -> Iterator[tuple[str, str]]:
    """Yield a text for each line, or for each article: its passages joined in the order of their `pos`."""
    articles: dict[str, dict[int, str]] = {}
    for where, line in numbered_lines(path):
        fields = json_object(where, line)
        text = named_string(where, fields, DOC_TEXTS)
        if "article" not in fields:
            yield named_string(where, fields, DOC_IDS), text
            continue
        passages = articles.setdefault(named_string(where, fields, ("article",)), {})
        position = fields.get("pos")
        if not isinstance(position, int) or isinstance(position, bool):
            raise InputError(f"{where}: 'pos' must be a whole number, as the line has an 'article'")
        if position in passages:
            raise InputError(f"{where}: article {fields['article']!r} has two passages with pos {position}")
        passages[position] = text
    for article, passages in articles.items():
        yield article, "\n\n".join(passages[position] for position in sorted(passages))
