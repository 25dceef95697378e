"""MaxSim without padding has the scores of the family's aggregator, skipped tokens and all."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from farrank_rankers.chunking import Chunking
from farrank_rankers.families.maxsim import MaxSim
from farrank_rankers.family import HeadLayer, MaxSimOptions, WindowAggregation
from farrank_rankers.features import Features, batched, stacked
from farrank_rankers.spec import RankerSpec
from farrank_rankers.token_vectors import are_compared
from farrank_rankers.tokens import Role
from farrank_runtimes import maxsim
from farrank_runtimes.maxsim import BestRows, best_rows, score_by_maxsim, score_token_vectors

ROLES = [Role.SPECIAL, Role.DOCUMENT, Role.SKIPPED, Role.PADDING]
LENGTHS = st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=5), min_size=1, max_size=5)


def vectors_of(length: int, roles: list[Role]) -> Features:
    drawn = torch.tensor(roles)[torch.randint(len(roles), (length,))]
    drawn[0] = roles[0]
    return Features(torch.randn(length, 8), drawn)


def found_rows(*given: Any) -> BestRows:
    rows = best_rows(*given)
    assert rows is not None
    return rows


def reference(documents: list[Features], query: Features, options: MaxSimOptions) -> Any:
    spec = RankerSpec("maxsim", "-", Chunking("disjoint", 8, 8, 100), options=options)
    features, mask = batched(documents)
    return MaxSim(spec, {}).explain(features, mask, stacked([query]).repeated(len(documents)))


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("aggregation", ["union", "max", "first"])
@given(lengths=LENGTHS)
def test_scores_are_the_aggregators(
    lengths: list[list[int]], aggregation: WindowAggregation, mean: bool
) -> None:
    documents = [stacked([vectors_of(length, ROLES) for length in chunks]) for chunks in lengths]
    query = vectors_of(5, [Role.SPECIAL, Role.QUERY, Role.EXPANSION, Role.PADDING])
    options = MaxSimOptions(aggregation=aggregation, mean=mean)
    scores, chunk_scores = reference(documents, query, options)
    found = score_by_maxsim(documents, [query] * len(documents), options)
    assert found.scores == pytest.approx(scores.tolist(), abs=1e-5)
    for row, expected, chunks in zip(found.chunk_scores, chunk_scores.tolist(), lengths, strict=True):
        assert row == pytest.approx(expected[: len(chunks)], abs=1e-5)


def with_ends(length: int, inner: list[Role]) -> Features:
    """Make vectors of a text of `length` tokens, with a special token on each side, and perhaps padding."""
    roles = [Role.SPECIAL, *(inner[int(torch.randint(len(inner), ()))] for _ in range(length)), Role.SPECIAL]
    roles += [Role.PADDING] * int(torch.randint(3, ()))
    vectors = torch.randn(len(roles), 8)
    vectors[[role == Role.PADDING for role in roles]] = torch.nan
    return Features(vectors, torch.tensor(roles))


TEXTS = MaxSimOptions(aggregation="max", mean=True, text_head=(HeadLayer("dense", 16),))


@pytest.mark.parametrize("most", [None, 1, 3])
@pytest.mark.parametrize("tile", [3, 16_384])
@given(lengths=LENGTHS, asked=st.integers(0, 3))
def test_texts_and_tokens_are_scored_as_by_the_aggregator(
    lengths: list[list[int]], asked: int, tile: int, most: int | None
) -> None:
    documents = [
        stacked([with_ends(length - 1, [Role.DOCUMENT, Role.SKIPPED]) for length in chunks])
        for chunks in lengths
    ]
    query = with_ends(asked, [Role.QUERY])
    options = replace(TEXTS, compared_windows=most)
    scores, chunk_scores = reference(documents, query, options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maxsim, "_TILE_ROWS", tile)
        found = score_by_maxsim(documents, [query] * len(documents), options)
    assert found.scores == pytest.approx(scores.tolist(), abs=1e-5)
    for row, expected, chunks in zip(found.chunk_scores, chunk_scores.tolist(), lengths, strict=True):
        assert row == pytest.approx(expected[: len(chunks)], abs=1e-5)


def test_the_best_rows_are_no_texts() -> None:
    document = stacked([with_ends(length, [Role.DOCUMENT]) for length in (3, 4)])
    query = with_ends(3, [Role.QUERY])
    (score,), (own,) = (found := score_by_maxsim([document], [query], TEXTS)).scores, found.chunk_scores
    rows, similarities = found_rows(document, query, TEXTS, own)
    window = int(np.argmax(own))
    first, last = (0, 5)[window], (4, 10)[window]
    assert all(first < row < last for row in rows.tolist())
    asked, read = query.vectors[:5], document.vectors[window][are_compared(document.token_roles[window])]
    texts = float(asked[0] @ read[0] + asked[4] @ read[-1])
    assert score == pytest.approx((texts + similarities.mean()) / 2, abs=1e-5)


def test_nothing_to_compare_has_no_best_rows() -> None:
    query = vectors_of(3, [Role.QUERY])
    nothing = Features(torch.randn(1, 2, 8), torch.tensor([[Role.SKIPPED, Role.SKIPPED]]))
    texts_alone = stacked([with_ends(0, [])])
    for document, options in ((nothing, MaxSimOptions()), (texts_alone, TEXTS)):
        asked = with_ends(3, [Role.QUERY]) if options is TEXTS else query
        (own,) = score_by_maxsim([document], [asked], options).chunk_scores
        assert best_rows(document, asked, options, own) is None


def test_queries_of_different_lengths_are_scored_together() -> None:
    documents = [stacked([vectors_of(4, ROLES)]) for _ in range(3)]
    queries = [vectors_of(length, [Role.QUERY]) for length in (2, 7, 4)]
    found = score_by_maxsim(documents, queries, MaxSimOptions())
    alone = [
        score_by_maxsim([document], [query], MaxSimOptions()).scores[0]
        for document, query in zip(documents, queries, strict=True)
    ]
    assert found.scores == pytest.approx(alone, abs=1e-6)
    assert score_by_maxsim([], [], MaxSimOptions()).scores == []


@pytest.mark.parametrize("aggregation", ["union", "max", "first"])
@pytest.mark.parametrize("tile", [3, 16_384])
@given(lengths=st.lists(st.integers(1, 7), min_size=1, max_size=5))
def test_the_best_rows_decide_the_score(
    lengths: list[int], aggregation: WindowAggregation, tile: int
) -> None:
    document = stacked([vectors_of(length, ROLES) for length in lengths])
    query = vectors_of(6, [Role.QUERY])
    query.token_roles[2] = Role.EXPANSION  # has no characters, and no match
    options = MaxSimOptions(aggregation=aggregation)
    scored = score_by_maxsim([document], [query], options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maxsim, "_TILE_ROWS", tile)
        rows, similarities = found_rows(document, query, options, scored.chunk_scores[0])
    kept = document.vectors[are_compared(document.token_roles)]
    products = query.vectors @ kept.T
    own = [0, 1, 3, 4, 5]
    assert similarities.tolist() == pytest.approx(products[own, rows].tolist(), abs=1e-5)
    total = sum(similarities.tolist())
    if aggregation == "union":
        assert total + products[2].max().item() == pytest.approx(scored.scores[0], abs=1e-4)
    else:
        number = 0 if aggregation == "first" else int(np.argmax(scored.chunk_scores[0]))
        window = document.vectors[number][are_compared(document.token_roles[number])]
        assert total + (query.vectors[2] @ window.T).max().item() == pytest.approx(scored.scores[0], abs=1e-4)


def test_documents_are_copied_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call may have gigabytes of vectors; copies of all of them would double that."""
    documents = [stacked([vectors_of(5, ROLES)] * count) for count in (2, 1, 1, 7, 1, 2)]
    query = vectors_of(4, [Role.QUERY])
    whole = score_by_maxsim(documents, [query] * len(documents), MaxSimOptions())
    copied: list[int] = []

    def counted(rows: list[Any], *others: Any) -> Any:
        copied.append(len(rows))
        return score_token_vectors(rows, *others)

    monkeypatch.setattr(maxsim, "score_token_vectors", counted)
    monkeypatch.setattr(maxsim, "_GROUP_BYTES", 3 * 5 * 8 * 4)
    found = score_by_maxsim(documents, [query] * len(documents), MaxSimOptions())
    assert found.scores == pytest.approx(whole.scores, abs=1e-5)
    assert [len(own) for own in found.chunk_scores] == [len(own) for own in whole.chunk_scores]
    assert copied == [2, 1, 1, 2]
