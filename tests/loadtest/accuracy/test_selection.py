"""The selector as a ranking: the document whose best chunk BM25 prefers is first, however far in it lies."""

import pytest

from farrank_loadtest.accuracy.selection import selector_run
from farrank_loadtest.errors import LoadtestError
from farrank_loadtest.targets import CandidateDocument
from farrank_loadtest.workloads import Call

FILLER = "The weather was mild and nothing happened for a while. " * 200


def test_the_best_chunk_orders_documents() -> None:
    documents = {
        "far": FILLER + "The lighthouse keeper drank a barrel of rum." + FILLER,
        "spread": FILLER + "lighthouse " + FILLER + "keeper " + FILLER + "rum",
        "none": FILLER,
    }
    call = Call("lighthouse keeper rum", tuple(CandidateDocument(*each) for each in documents.items()), "q")

    run = selector_run("embedded", [call])

    assert [each.doc_id for each in run["q"]] == ["far", "spread", "none"]
    assert run["q"][2].score == 0


def test_a_source_without_ranker_is_named() -> None:
    with pytest.raises(LoadtestError, match=r"^selector 'nowhere'"):
        selector_run("nowhere", [])
