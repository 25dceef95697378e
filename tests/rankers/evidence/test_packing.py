"""Packing of a whole ranking's sentences into a budget of tokens."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from farrank_rankers.evidence.choosing import DocumentText, ScoredSpan
from farrank_rankers.evidence.packing import RankedDocument, competing, packed, standard_scores


def words(text: str) -> int:
    return len(text.split())


def pack(query: str, documents: list[RankedDocument], budget: int) -> list[list[ScoredSpan]]:
    steps = packed(query, documents, budget, words)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: list[list[ScoredSpan]] = done.value
            return found


def whole(text: str, worth: float = 0.0) -> RankedDocument:
    return RankedDocument(DocumentText(text), [((0, len(text)), worth)])


def texts(documents: list[RankedDocument], pieces: list[list[ScoredSpan]]) -> list[list[str]]:
    return [
        [document.document.text[piece.start : piece.end] for piece in its]
        for document, its in zip(documents, pieces, strict=True)
    ]


RHINE = "Rivers are long. The Rhine rises in Switzerland. Bread is baked. Ships go on the Rhine now."


def test_the_best_sentences_that_fit_are_taken_and_neighbours_joined() -> None:
    documents = [whole(RHINE)]

    assert texts(documents, pack("where does the Rhine rise", documents, 5)) == [
        ["The Rhine rises in Switzerland."]
    ]
    assert texts(documents, pack("where does the Rhine rise", documents, 11)) == [
        ["The Rhine rises in Switzerland.", "Ships go on the Rhine now."]
    ]
    assert texts(documents, pack("where does the Rhine rise", documents, 100)) == [[RHINE]]


def test_worthier_chunks_come_first_where_the_words_are_the_same() -> None:
    documents = [whole("A river here in the west.", 0.1), whole("A river here in the east.", 0.9)]

    assert texts(documents, pack("river", documents, 6)) == [[], ["A river here in the east."]]


def test_a_sentence_is_worth_as_much_as_the_best_of_its_chunks() -> None:
    text = "A river here in the west. A river here in the east. A river here in the north."
    chunks = [((52, len(text)), 0.1), ((0, 25), 0.2), ((0, 51), 0.9), ((26, 51), 0.95), ((26, 51), 0.1)]
    documents = [RankedDocument(DocumentText(text), chunks)]

    assert texts(documents, pack("river", documents, 6)) == [["A river here in the east."]]
    assert texts(documents, pack("river", documents, 12)) == [
        ["A river here in the west. A river here in the east."]
    ]


def test_a_long_document_leaves_turns_to_others() -> None:
    text = "\n".join(f"The river number {number} rises." for number in range(100))
    chunks = [((start, start + 100), 0.5) for start in range(0, len(text) - 100, 50)]
    steps = packed("river", [RankedDocument(DocumentText(text), chunks)], 50, words)

    assert sum(1 for _ in steps) > len(chunks) + 2 * 90


def test_a_sentence_with_the_same_words_is_taken_once() -> None:
    documents = [whole("The river rises. Bread is good.", 1.0), whole("the  RIVER rises.\n\nSea.", 0.5)]

    assert texts(documents, pack("river", documents, 100)) == [
        ["The river rises. Bread is good."],
        ["Sea."],
    ]


def test_the_best_chunks_compete() -> None:
    worths = [[((0, 100), 0.5), ((100, 200), 0.9)], [((0, 100), 0.7)], [((0, 50), 0.1)]]

    assert competing(worths, 150) == [[1], [0], []]
    assert competing(worths, 1e9) == [[1, 0], [0], [0]]
    assert competing([], 10) == []


def test_equal_values_have_the_standard_score_0() -> None:
    assert standard_scores([2.0, 2.0]) == [0, 0]
    assert standard_scores([1.0, 3.0]) == [-1, 1]
    assert standard_scores([]) == []


def test_rules_between_sentences_take_no_more_than_a_few_counts() -> None:
    """With one count of all pieces for each dropped sentence, 65,536 tokens took minutes."""
    text = "\n---- ----\n".join(f"The river number {number} rises." for number in range(200))
    counted = 0

    def count(piece: str) -> int:
        nonlocal counted
        counted += len(piece)
        return words(piece)

    steps = packed("river", [whole(text)], 500, count)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            (pieces,) = done.value
            break
    assert 480 < sum(words(text[piece.start : piece.end]) for piece in pieces) <= 500
    assert counted < 6 * len(text)


SENTENCES = st.lists(
    st.sampled_from(
        ("The river rises. ", "Bread is baked. ", "Dr. No is 3 years old. ", "Sea! ", "- item\n", "x")
    ),
    max_size=12,
).map("".join)


@given(st.lists(st.tuples(SENTENCES, st.floats(-3, 3)), min_size=1, max_size=4), st.integers(0, 40))
def test_the_budget_is_kept_without_overlaps(given_: list[tuple[str, float]], budget: int) -> None:
    documents = [whole(text, worth) for text, worth in given_]
    pieces = pack("where does the river rise", documents, budget)

    assert sum(words(piece) for its in texts(documents, pieces) for piece in its) <= budget
    for its in pieces:
        assert all(one.end < other.start for one, other in pairwise(its))
        assert all(0 <= piece.score < 1 and piece.start < piece.end for piece in its)
    everything = [piece for its in texts(documents, pack("river", documents, 1000)) for piece in its]
    kept, there = " ".join(everything).split(), " ".join(each.document.text for each in documents).split()
    assert set(kept) == set(there) - {"-"} | set(kept) & {"-"}
