"""The documents that every ranker reads: long documents of a collection."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from farrank_rankers.tokenizer import TextTokenizer
from farrank_trec.errors import InputError
from farrank_trec.lines import json_object, named_string, numbered_lines
from farrank_trec.text_files import DOC_IDS, DOC_TEXTS


@dataclass(frozen=True, slots=True)
class LongDocument:
    """A text and its number of tokens."""

    doc_id: str
    text: str
    tokens: int


def documents_of_lengths(
    path: Path, count: int, lengths: Sequence[int], tokenizer: TextTokenizer
) -> list[LongDocument]:
    """Cut a collection's first long documents to the given lengths in tokens, in turn.

    Raises: InputError naming file and line if the collection is malformed, or holds fewer documents.
    """
    found: list[tuple[int, str, str]] = []
    shorter: list[tuple[int, str, str]] = []
    for doc_id, text in _documents(path):
        tokens = tokenizer.count(text)
        (found if tokens >= max(lengths) else shorter).append((tokens, doc_id, text))
        if len(found) == count:
            break
    # If there are too few long documents, add the longest others.
    found += sorted(shorter, key=lambda each: -each[0])[: count - len(found)]
    if len(found) < count:
        raise InputError(f"{path}: holds {len(found):,} documents; {count:,} are needed")
    documents = []
    for (_, doc_id, text), length in zip(found, cycle(lengths), strict=False):
        read = tokenizer.read(text, length)
        cut = text[: int(read.ends.max())] if len(read) else text
        # Count again: a word that was cut may have other pieces.
        documents.append(LongDocument(doc_id, cut, tokenizer.count(cut)))
    return documents


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
            raise InputError(f"{where}: 'pos' must be a whole number because the line has an 'article'")
        if position in passages:
            raise InputError(f"{where}: article {fields['article']!r} has two passages with pos {position}")
        passages[position] = text
    for article, passages in articles.items():
        yield article, "\n\n".join(passages[position] for position in sorted(passages))
