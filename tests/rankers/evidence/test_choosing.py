"""Choice of sentences from the best chunks."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from farrank_rankers.evidence.choosing import (
    SENTENCES,
    DocumentText,
    ReadDocument,
    ScoredSpan,
    Span,
    chosen,
    sentences_of,
)
from farrank_rankers.evidence.matching import QueryTerms
from farrank_rankers.evidence.sentences import sentences


def stored(text: str) -> DocumentText:
    return DocumentText(text, np.array(sentences(text), dtype=np.uint32).reshape(-1, 2))


def choose(query: str, *documents: tuple[str, Sequence[Span]]) -> list[list[ScoredSpan]]:
    """Choose sentences; they are the same if their bounds are stored."""
    found, of_stored = (
        taken(query, [ReadDocument(made(text), chunks) for text, chunks in documents])
        for made in (DocumentText, stored)
    )
    assert found == of_stored
    return found


def taken(query: str, documents: Sequence[ReadDocument]) -> list[list[ScoredSpan]]:
    steps = chosen(QueryTerms(query, [each.document.text for each in documents]), documents)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: list[list[ScoredSpan]] = done.value
            return found


PROSE = (
    "Rivers are long. The Rhine rises in Switzerland. It is cold there. Ships go on the Rhine. Bread is good."
)


def test_the_sentence_that_matches_best_is_first() -> None:
    (found,) = choose("where does the Rhine rise", (PROSE, [(0, len(PROSE))]))

    assert [PROSE[each.start : each.end] for each in found][:2] == [
        "The Rhine rises in Switzerland.",
        "Ships go on the Rhine.",
    ]
    assert len(found) == SENTENCES
    assert found[0].score > found[1].score >= found[2].score >= 0


@pytest.mark.parametrize("made", [DocumentText, stored])
def test_a_sentence_cut_by_a_chunk_is_whole_where_most_of_it_is(made: Callable[[str], DocumentText]) -> None:
    middle, document = PROSE.index("rises"), made(PROSE)
    before = sentences_of(document, [(0, middle)])
    after = sentences_of(document, [(middle, len(PROSE))])

    assert [PROSE[start:end] for start, end in before] == ["Rivers are long."]
    assert PROSE[slice(*after[0])] == "The Rhine rises in Switzerland."


def test_without_a_match_the_best_chunk_counts() -> None:
    bread = PROSE.index("Bread")
    chunks = [(bread, len(PROSE)), (0, bread)]
    (found,) = choose("xylophone", (PROSE, chunks))

    assert PROSE[found[0].start : found[0].end] == "Bread is good."
    assert found[0].score == 0


@pytest.mark.parametrize("made", [DocumentText, stored])
def test_a_long_sentence_in_several_chunks_is_taken(made: Callable[[str], DocumentText]) -> None:
    text = "word " * 150 + "end."
    assert sentences_of(made(text), [(300, 400)]) != []


def test_many_documents_have_their_own_sentences() -> None:
    """They are compared some at a time."""
    texts = [f"Bread is good. The river number{place} rises here. It is cold." for place in range(25)]
    found = choose("river number24", *((text, [(0, len(text))]) for text in texts))

    assert [text[its[0].start : its[0].end] for text, its in zip(texts, found, strict=True)] == [
        f"The river number{place} rises here." for place in range(25)
    ]
    assert max(range(25), key=lambda place: found[place][0].score) == 24


def test_a_document_without_text_has_none() -> None:
    assert choose("river", ("", [(0, 0)]), (PROSE, [(0, 16)]))[0] == []


def test_one_sentence_at_least_is_of_the_best_chunk() -> None:
    text = "Bread is good. Salt is cheap.\n\nThe Rhine rises here. The Rhine is long. The Rhine ends there."
    best, other = (0, text.index("\n")), (text.index("The Rhine"), len(text))
    (found,) = choose("where does the Rhine rise", (text, [best, other]))

    assert [text[each.start : each.end] for each in found] == [
        "The Rhine rises here.",
        "The Rhine is long.",
        "Bread is good.",
    ]
