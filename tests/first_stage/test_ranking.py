"""The found documents and their order, compared with BM25 computed here from its formula."""

import math
from collections import Counter
from pathlib import Path

import pytest

from farrank_calls.errors import Gone, InvalidArgument
from farrank_first_stage.bm25 import Bm25Config
from farrank_first_stage.config import FirstStageConfig
from farrank_first_stage.stages import FirstStages, open_first_stages

pytestmark = pytest.mark.asyncio(loop_scope="session")

TIMEOUT_S = 60.0


def lucene_length(tokens: int) -> int:
    """Lucene stores a length in one byte: exact below 24, with four significant bits above."""
    if tokens < 24:
        return tokens
    shift = max(0, (tokens - 24).bit_length() - 4)
    return 24 + ((tokens - 24) >> shift << shift)


def bm25(query: str, texts: dict[str, str], k1: float, b: float) -> dict[str, float]:
    """Source: Robertson & Zaragoza 2009, in Lucene's form (idf from 1, no factor k1 + 1)."""
    bags = {doc_id: Counter(text.split()) for doc_id, text in texts.items()}
    mean_length = sum(bag.total() for bag in bags.values()) / len(bags)
    scores: dict[str, float] = {}
    for term in query.split():
        found = [doc_id for doc_id, bag in bags.items() if term in bag]
        idf = math.log(1 + (len(bags) - len(found) + 0.5) / (len(found) + 0.5))
        for doc_id in found:
            frequency = bags[doc_id][term]
            length = lucene_length(bags[doc_id].total())
            weight = frequency / (frequency + k1 * (1 - b + b * length / mean_length))
            scores[doc_id] = scores.get(doc_id, 0.0) + idf * weight
    return dict(sorted(scores.items(), key=lambda item: -item[1]))


@pytest.mark.parametrize(
    ("index", "k1", "b"), [("toy", 0.9, 0.4), ("toy-other-parameters", 1.5, 0.9)], ids=["defaults", "others"]
)
@pytest.mark.parametrize("query", ["alpha", "omega", "alpha omega", "gamma sigma delta"])
async def test_scores_are_bm25(
    stage: FirstStages, toy_texts: dict[str, str], index: str, k1: float, b: float, query: str
) -> None:
    found = await stage.search(index, query, 10, TIMEOUT_S)
    expected = bm25(query, toy_texts, k1, b)
    assert [candidate.doc_id for candidate in found] == list(expected)
    # Anserini rounds scores to four places.
    assert [candidate.score for candidate in found] == pytest.approx(list(expected.values()), abs=1e-4)


@pytest.mark.parametrize("index", ["odd", "odd-rm3"])
async def test_given_documents_score_as_they_are_found(stage: FirstStages, index: str) -> None:
    one = stage.stages[index]
    found = await one.search("volcano magma tiedoc", 20, TIMEOUT_S, texts=False)
    assert len(found) > 5
    asked = [found[1].doc_id, found[4].doc_id, "quotes", "unknown"]
    scores = await one.scores("volcano magma tiedoc", asked, TIMEOUT_S)
    assert scores == {found[1].doc_id: found[1].score, found[4].doc_id: found[4].score}
    assert await one.scores("volcano", [], TIMEOUT_S) == {}
    assert await one.scores("absentword", asked, TIMEOUT_S) == {}


async def test_texts_are_read_by_id_or_left_out(stage: FirstStages, odd_texts: dict[str, str]) -> None:
    one = stage.stages["odd"]
    asked = ["lines", "emoji", "lines", "controls"]
    assert await one.texts(asked, TIMEOUT_S) == [odd_texts[doc_id] for doc_id in asked]
    without = await one.search("tiedoc", 2, TIMEOUT_S, texts=False)
    assert [(each.doc_id, each.text) for each in without] == [("tie-a", ""), ("tie-b", "")]


async def test_equal_scores_come_in_the_order_of_doc_id(stage: FirstStages) -> None:
    found = await stage.search("odd", "tiedoc", 10, TIMEOUT_S)
    assert [candidate.doc_id for candidate in found] == ["tie-a", "tie-b", "tie-c"]
    first_two = await stage.search("odd", "tiedoc", 2, TIMEOUT_S)
    assert [candidate.doc_id for candidate in first_two] == ["tie-a", "tie-b"]


async def test_rm3_finds_what_shares_no_word_with_the_query(stage: FirstStages) -> None:
    plain = await stage.search("odd", "volcano", 10, TIMEOUT_S)
    expanded = await stage.search("odd-rm3", "volcano", 10, TIMEOUT_S)
    assert {candidate.doc_id for candidate in plain} == {"volcano-1", "volcano-2"}
    assert {candidate.doc_id for candidate in expanded} == {"volcano-1", "volcano-2", "chamber"}
    assert expanded[-1].doc_id == "chamber"


@pytest.mark.parametrize("query", ["", " ", "the of and", "?!*", "absentword", "\x00"])
@pytest.mark.parametrize("index", ["odd", "odd-rm3"])
async def test_a_query_with_no_term_in_the_index_finds_nothing(
    stage: FirstStages, index: str, query: str
) -> None:
    assert await stage.search(index, query, 10, TIMEOUT_S) == []


@pytest.mark.parametrize(
    "query",
    [
        '"quotesdoc',
        "quotesdoc AND absent",
        "-quotesdoc",
        "title: quotesdoc",
        "(quotesdoc",
        "quotesdoc^2~",
    ],
)
@pytest.mark.parametrize("index", ["odd", "odd-rm3"])
async def test_lucene_operators_are_plain_text(stage: FirstStages, index: str, query: str) -> None:
    found = await stage.search(index, query, 10, TIMEOUT_S)
    assert found[0].doc_id == "quotes"


@pytest.mark.parametrize("k", [11, 1000, 2**31 - 1])
async def test_k_may_exceed_what_there_is(stage: FirstStages, k: int) -> None:
    assert len(await stage.search("toy", "alpha omega", k, TIMEOUT_S)) == 3


@pytest.mark.parametrize("index", ["odd", "odd-rm3"])
async def test_a_query_may_be_a_document_of_1024_distinct_terms(stage: FirstStages, index: str) -> None:
    words = " ".join(f"word{n}" for n in range(1023))
    found = await stage.search(index, f"{words} {words} emojidoc", 10, TIMEOUT_S)
    assert found[0].doc_id == "emoji"
    with pytest.raises(InvalidArgument, match="query: has more than 1024 distinct terms"):
        await stage.search(index, f"{words} one-more emojidoc", 10, TIMEOUT_S)


async def test_an_index_may_allow_more_terms(odd_index: Path) -> None:
    config = FirstStageConfig(indexes={"odd": Bm25Config(odd_index)}, max_query_terms=10_000)
    stage = open_first_stages(config)
    await stage.start()
    try:
        words = " ".join(f"word{n}" for n in range(5000))
        found = await stage.search("odd", f"{words} emojidoc", 10, TIMEOUT_S)
    finally:
        await stage.stop()
    assert [candidate.doc_id for candidate in found] == ["emoji"]


@pytest.mark.parametrize(
    ("doc_id", "query"),
    [
        ("emoji", "emojidoc \U0001f600"),
        ("controls", "controldoc \x00"),
        ("lines", "linesdoc"),
        ("quotes", "quotesdoc"),
        ("huge", "hugedoc"),
    ],
)
async def test_texts_come_back_byte_for_byte(
    stage: FirstStages, odd_texts: dict[str, str], doc_id: str, query: str
) -> None:
    [candidate] = await stage.search("odd", query, 1, TIMEOUT_S)
    assert candidate.doc_id == doc_id
    assert candidate.text == odd_texts[doc_id]


async def test_indexes_are_fused(stage: FirstStages) -> None:
    query = "volcano tiedoc"
    plain, rm3 = [await stage.stages[name].search(query, 20, TIMEOUT_S) for name in ("odd", "odd-rm3")]
    scores = {each.doc_id: each.score for each in plain}
    lowest = min(scores.values())
    assert len(plain) < len(rm3)
    expected = {each.doc_id: (each.score + scores.get(each.doc_id, lowest)) / 2 for each in rm3}
    found = await stage.search("fused", query, 20, TIMEOUT_S)
    assert {each.doc_id: each.score for each in found} == pytest.approx(expected)
    assert {each.doc_id: each.text for each in found} == {each.doc_id: each.text for each in rm3}
    with pytest.raises(Gone, match="no longer in the index: 'absent'"):
        await stage.stages["fused"].texts(["emoji", "absent"], TIMEOUT_S)


async def test_descriptions_say_how_each_index_ranks(stage: FirstStages, odd_texts: dict[str, str]) -> None:
    odd_documents = len(odd_texts)
    described = stage.describe()
    assert [(each.name, each.documents, each.ranking) for each in described] == [
        ("toy", 3, "bm25(k1=0.9,b=0.4)"),
        ("toy-other-parameters", 3, "bm25(k1=1.5,b=0.9)"),
        ("odd", odd_documents, "bm25(k1=0.9,b=0.4)"),
        ("odd-rm3", odd_documents, "bm25(k1=0.9,b=0.4)+rm3(terms=10,documents=10,weight=0.5)"),
        ("fused", odd_documents, "mean(scores=raw,depth=1000)"),
    ]


async def test_the_mean_length_is_about_right(stage: FirstStages, odd_texts: dict[str, str]) -> None:
    mean = sum(map(len, odd_texts.values())) / len(odd_texts)
    described = {each.name: each.mean_characters for each in stage.describe()}
    assert mean / 2 < described["odd"] < mean * 2
