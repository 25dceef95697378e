"""Choice of sentences from the best chunks."""

from farrank_rankers.evidence.choosing import SENTENCES, ReadDocument, ScoredSpan, chosen, sentences_of


def choose(query: str, *documents: ReadDocument) -> list[list[ScoredSpan]]:
    steps = chosen(query, documents)
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
    (found,) = choose("where does the Rhine rise", ReadDocument(PROSE, [(0, len(PROSE))]))

    assert [PROSE[each.start : each.end] for each in found][:2] == [
        "The Rhine rises in Switzerland.",
        "Ships go on the Rhine.",
    ]
    assert len(found) == SENTENCES
    assert found[0].score > found[1].score >= found[2].score >= 0


def test_a_sentence_cut_by_a_chunk_is_whole_where_most_of_it_is() -> None:
    middle = PROSE.index("rises")
    before = sentences_of(PROSE, [(0, middle)])
    after = sentences_of(PROSE, [(middle, len(PROSE))])

    assert [PROSE[start:end] for start, end in before] == ["Rivers are long."]
    assert PROSE[slice(*after[0])] == "The Rhine rises in Switzerland."


def test_without_a_match_the_best_chunk_counts() -> None:
    bread = PROSE.index("Bread")
    chunks = [(bread, len(PROSE)), (0, bread)]
    (found,) = choose("xylophone", ReadDocument(PROSE, chunks))

    assert PROSE[found[0].start : found[0].end] == "Bread is good."
    assert found[0].score == 0


def test_a_long_sentence_in_several_chunks_is_taken() -> None:
    text = "word " * 150 + "end."
    assert sentences_of(text, [(300, 400)]) != []


def test_a_document_without_text_has_none() -> None:
    assert choose("river", ReadDocument("", [(0, 0)]), ReadDocument(PROSE, [(0, 16)]))[0] == []
