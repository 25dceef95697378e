"""Rankers that can read with adaptive depth, and the reasons of the others."""

from dataclasses import replace

import pytest

from farrank_rankers.adaptive import why_not_adaptive
from farrank_rankers.chunking import Chunking
from farrank_rankers.family import FAMILIES
from farrank_rankers.spec import RankerSpec

READS_IN_ROUNDS = {
    *("maxp", "sump", "avgp", "cedr-knrm", "cedr-pacrr", "cedr-drmm", "neural-model1"),
    *("parade-avg", "parade-max", "parade-attn", "parade-transf-rand", "parade-transf-pretr"),
    *("parade-transf-pretr-q", "cross-encoder", "yes-no"),
}


def spec(family: str) -> RankerSpec:
    kind = FAMILIES[family].chunking
    return RankerSpec(family, "tiny", Chunking(kind, 150, 100 if kind == "sliding" else 150, 1431))


@pytest.mark.parametrize("family", FAMILIES)
def test_families_whose_score_is_of_a_set_of_chunks_read_in_rounds(family: str) -> None:
    assert (why_not_adaptive(spec(family)) is None) == (family in READS_IN_ROUNDS)


def test_the_reasons_against_rounds() -> None:
    assert why_not_adaptive(spec("longp")) == "family longp scores a document by its first chunk"
    crossed = spec("cross-encoder")
    first = replace(crossed, options=replace(crossed.options, aggregation="first"))  # type: ignore[call-arg]
    assert "first chunk" in (why_not_adaptive(first) or "")
    assert "without the query" in (why_not_adaptive(spec("biencoder")) or "")
    assert "ensemble" in (why_not_adaptive(spec("maxp"), spec("sump")) or "")
    short = replace(spec("maxp"), chunking=Chunking("sliding", 150, 100, 149))
    assert why_not_adaptive(short) == "its max_document_tokens is less than its window"
