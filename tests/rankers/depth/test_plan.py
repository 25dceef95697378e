"""A plan's limits, its text, and its place in a ranker's spec."""

import json
from dataclasses import replace
from typing import Any

import pytest

from farrank_rankers.chunking import Chunking
from farrank_rankers.depth.plan import DepthPlan, Round
from farrank_rankers.errors import SpecError
from farrank_rankers.family import CrossEncoderOptions
from farrank_rankers.spec import RankerSpec, content_version
from farrank_rankers.tokenizer import TokenizerFiles

SPEC = RankerSpec("maxp", "tiny", Chunking("sliding", 150, 100, 1431))
PLAN = DepthPlan((Round(1.0, 3), Round(0.25, 4)), prior=0.5)


def test_rankers_whose_best_chunk_decides_read_the_best_documents_on() -> None:
    hub = RankerSpec("cross-encoder", "tiny", SPEC.chunking)
    mean = replace(hub, options=CrossEncoderOptions(aggregation="mean"))
    assert SPEC.depth_plan == hub.depth_plan == DepthPlan((Round(1.0, 1), Round(0.3, 3)))
    assert str(SPEC.depth_plan) == "1 chunk of all documents, then 3 chunks of the best 30%"
    others = [RankerSpec(name, "tiny", SPEC.chunking) for name in ("sump", "avgp", "parade-attn")]
    assert {each.depth_plan for each in others} == {mean.depth_plan}
    assert mean.depth_plan == DepthPlan((Round(1.0, 2),), 0.0)
    assert str(mean.depth_plan) == "2 chunks of all documents"
    assert (SPEC.depth_plan.most_chunks(100), mean.depth_plan.most_chunks(100)) == (190, 200)


def test_a_plan_is_written_in_words() -> None:
    assert str(PLAN) == "3 chunks of all documents, then 4 chunks of the best 25%, with a prior of 0.5"


def test_a_round_reads_at_least_one_document() -> None:
    assert [Round(0.25, 4).documents(count) for count in (1, 4, 5, 8)] == [1, 1, 2, 2]
    assert PLAN.most_chunks(5) == 15 + 8


def test_a_spec_keeps_its_plan_and_older_ones_have_the_default() -> None:
    assert "depth" not in json.loads(SPEC.to_json())
    planned = replace(SPEC, depth=PLAN)
    assert RankerSpec.from_json(planned.to_json()) == planned
    assert RankerSpec.from_json(SPEC.to_json()).depth is None


def test_the_plan_is_no_part_of_the_version() -> None:
    files = TokenizerFiles("{}", "{}")
    versions = {content_version(each, files, {}, "w") for each in (SPEC, replace(SPEC, depth=PLAN))}
    assert len(versions) == 1


@pytest.mark.parametrize(
    ("depth", "message"),
    [
        ({"rounds": []}, "rounds has 0 rounds; it must have 1 to 8"),
        ({"rounds": [{"share": 1, "chunks": 1}] * 9}, "rounds has 9 rounds; it must have 1 to 8"),
        (
            {"rounds": [{"share": 0.5, "chunks": 1}]},
            r"rounds\[0\].share is 0.5; it must be 1: the first round reads all",
        ),
        (
            {"rounds": [{"share": each, "chunks": 1} for each in (1, 0.2, 0.5)]},
            r"rounds\[2\].share is 0.5; it must be at most 0.2, that of the round before",
        ),
        ({"rounds": [{"share": 0, "chunks": 1}]}, "share is 0.0; it must be above 0 and at most 1"),
        ({"rounds": [{"share": 1, "chunks": 0}]}, "chunks is 0; it must be at least 1"),
        ({"rounds": [{"share": 1, "chunks": 1.5}]}, r"chunks is 1.5; it must be a whole number"),
        ({"prior": -0.1}, "prior is -0.1; it must be between 0 and 100"),
        ({"prior": float("nan")}, "prior must be a finite number"),
        ({"order": "bm25"}, "depth has the unknown key order; known are rounds, prior, figures"),
    ],
)
def test_a_plan_beyond_its_limits_is_refused(depth: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        RankerSpec.from_json(json.dumps(json.loads(SPEC.to_json()) | {"depth": depth}))
