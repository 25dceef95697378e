"""Where relevant passages lie in documents, counted as in the papers: by chunk, start and end.

The first relevant passage of each pair of query and document counts. If a collection has judged passages and
judged documents, passages are searched in the documents; if it has judged snippets, as FiRA, the snippets'
numbers give the positions. A chunk has 477 tokens: BERT's 512 less special tokens and a query of 32.
Source: Boytsov et al., arXiv 2207.01262, online appendix, 1.3 and 1.4.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from farrank_rankers.tokenizer import TextTokenizer
from farrank_training.data_sets.articles import article_text, read_articles
from farrank_training.data_sets.passage_matching import Match, PassageMatcher
from farrank_trec import read_collection, read_documents, read_qrels
from farrank_trec.errors import InputError

CHUNK_TOKENS = 477
CHUNKS = 6


@dataclass(frozen=True, slots=True)
class Position:
    """The place of a query's first relevant passage in a document: tokens [start, end)."""

    query_id: str
    doc_id: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Positions:
    """The positions found; `notes` say how they were found and what was left out, a line each."""

    found: Sequence[Position]
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ChunkShare:
    """A chunk ("1" to "6", and "6+" beyond), and the numbers of positions that start and end in it."""

    chunk: str
    starts: int
    ends: int


def by_chunk(found: Sequence[Position], tokens: int = CHUNK_TOKENS) -> list[ChunkShare]:
    """Count positions by the chunks that their first and last tokens are in."""
    starts = Counter(min(each.start // tokens, CHUNKS) for each in found)
    ends = Counter(min((each.end - 1) // tokens, CHUNKS) for each in found)
    names = [*(str(number) for number in range(1, CHUNKS + 1)), f"{CHUNKS}+"]
    return [ChunkShare(name, starts[index], ends[index]) for index, name in enumerate(names)]


def positions_of_snippets(qrels: Path, snippet_tokens: int, min_grade: int = 1) -> Positions:
    """Estimate positions from judged snippets named `DOCID_INDEX`, assuming equal lengths.

    Raises: InputError naming the file if a judged snippet has another name, or none is relevant.
    """
    first: dict[tuple[str, str], int] = {}
    for query_id, judged in read_qrels(qrels).items():
        for name, grade in judged.items():
            doc_id, _, index = name.rpartition("_")
            if not (doc_id and index.isdecimal()):
                raise InputError(f"{qrels}: judged snippets must be called DOCID_INDEX; {name!r} is not")
            if grade >= min_grade:
                pair = query_id, doc_id
                first[pair] = min(int(index), first.get(pair, int(index)))
    if not first:
        raise InputError(f"{qrels}: no snippet is judged {min_grade} or better")
    found = [
        Position(query_id, doc_id, index * snippet_tokens, (index + 1) * snippet_tokens)
        for (query_id, doc_id), index in first.items()
    ]
    note = f"estimated: snippets taken as {snippet_tokens} tokens each; grades from {min_grade} count"
    return Positions(found, (note,))


# The documents to search -> queries each is relevant to -> these queries' relevant passages.
_Wanted = dict[str, dict[str, list[str]]]


def positions_of_passages(
    passages: Sequence[Path],
    passage_qrels: Path,
    documents: Sequence[Path],
    document_qrels: Path,
    tokenizer: TextTokenizer,
    *,
    min_grade: int = 1,
    progress: Callable[[int], None] = lambda documents: None,
) -> Positions:
    """Look for relevant passages in the relevant documents of their queries.

    Only the relevant passages are held in memory; documents are read one after the other. `progress` gets
    the number of documents searched.
    Raises: InputError if a file is malformed, or the collections hold nothing relevant.
    """
    of_passages = _relevant(passage_qrels, min_grade)
    wanted: _Wanted = {}
    for query_id, doc_ids in _relevant(document_qrels, min_grade).items():
        for doc_id in doc_ids if query_id in of_passages else ():
            wanted.setdefault(doc_id, {})[query_id] = of_passages[query_id]
    if not wanted:
        raise InputError(
            f"{passage_qrels}, {document_qrels}: no query has a relevant passage and a relevant document"
        )
    needed = {passage_id for query_id in of_passages for passage_id in of_passages[query_id]}
    texts = read_collection(passages, needed)
    read = ((each.doc_id, each.text) for each in read_documents(documents, wanted=wanted.keys()))
    return _search(read, wanted, texts, tokenizer, progress)


def positions_of_articles(
    passages: Path,
    qrels: Path,
    tokenizer: TextTokenizer,
    *,
    min_grade: int = 1,
    progress: Callable[[int], None] = lambda documents: None,
) -> Positions:
    """Look for relevant passages in their own articles, which are their passages joined.

    Raises: InputError if a file is malformed, or no relevant passage is in the collection.
    """
    articles = read_articles(passages)
    texts = {each.passage_id: each.text for article in articles.values() for each in article}
    article_of = {each.passage_id: each.article for article in articles.values() for each in article}
    wanted: _Wanted = {}
    for query_id, passage_ids in _relevant(qrels, min_grade).items():
        for passage_id in passage_ids:
            if passage_id in article_of:
                of_query = wanted.setdefault(article_of[passage_id], {}).setdefault(query_id, [])
                of_query.append(passage_id)
    read = ((article, article_text(articles[article])) for article in wanted)
    return _search(read, wanted, texts, tokenizer, progress)


def _relevant(qrels: Path, min_grade: int) -> dict[str, list[str]]:
    """Keep the relevant documents of every query that has any."""
    relevant = {
        query_id: [doc_id for doc_id, grade in judged.items() if grade >= min_grade]
        for query_id, judged in read_qrels(qrels).items()
    }
    return {query_id: doc_ids for query_id, doc_ids in relevant.items() if doc_ids}


def _search(
    documents: Iterable[tuple[str, str]],
    wanted: _Wanted,
    texts: Mapping[str, str],
    tokenizer: TextTokenizer,
    progress: Callable[[int], None],
) -> Positions:
    """Search documents, given as (id, text), for the passages of their queries."""
    found: list[Position] = []
    searched: set[str] = set()
    pairs = passages_asked = 0
    how: Counter[str] = Counter()
    for doc_id, text in documents:
        searched.add(doc_id)
        matcher = PassageMatcher(_ids(tokenizer, text))
        matches: dict[str, Match | None] = {}  # several queries may share a passage
        for query_id, passage_ids in wanted[doc_id].items():
            known = [passage_id for passage_id in passage_ids if passage_id in texts]
            for passage_id in known:
                if passage_id not in matches:
                    matches[passage_id] = matcher.find(_ids(tokenizer, texts[passage_id]))
            of_query = [match for match in map(matches.get, known) if match is not None]
            passages_asked += len(known)
            how.update(match.how for match in of_query)
            pairs += bool(known)
            if of_query:
                first = min(of_query, key=lambda match: match.start)
                found.append(Position(query_id, doc_id, first.start, first.end))
        progress(len(searched))
    if not found:
        raise InputError(
            f"no relevant passage was found in a relevant document ({len(searched):,} documents searched)"
        )
    notes = [
        f"matched: {how.total():,} of {passages_asked:,} relevant passages, {how['substring']:,} by common "
        f"substring and {how['subsequence']:,} by common subsequence; {len(found):,} of {pairs:,} pairs of "
        "query and document have one"
    ]
    needed = {each for queries in wanted.values() for ids in queries.values() for each in ids}
    for what, missing in (("documents", wanted.keys() - searched), ("passages", needed - texts.keys())):
        if missing:
            notes.append(
                f"not in the collection: {len(missing):,} relevant {what}, {min(missing)} among them"
            )
    return Positions(found, tuple(notes))


def _ids(tokenizer: TextTokenizer, text: str) -> list[int]:
    """Tokenize a text of any length."""
    return [int(each) for each in tokenizer.read(text, sys.maxsize).ids]
