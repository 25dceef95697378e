"""The option `depth` in every dialect, and scores that compare however a ranker is read."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from farrank_rankers.depth.plan import DepthPlan, Round
from support.http_endpoint import METHODS, Opened

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXTS = [f"{n} bread is baked from flour " * (100 + 20 * n) + "the river rises " * n for n in range(10)]
THREE = DepthPlan((Round(1.0, 2), Round(0.5, 2), Round(0.2, 4)))
Shape = tuple[str, Callable[[Any], dict[str, Any]], Callable[[Any], Any], str]


def _documents(depth: Any) -> dict[str, Any]:
    return {"query": "river", "documents": TEXTS, "depth": depth}


def _texts(depth: Any) -> dict[str, Any]:
    return {"query": "river", "texts": TEXTS, "depth": depth}


def _pairs(depth: Any) -> dict[str, Any]:
    return {"text_1": "river", "text_2": TEXTS, "depth": depth}


# Path, request, the answer's entries, the name of their score.
SHAPES: dict[str, Shape] = {
    "cohere": ("/v2/rerank", _documents, lambda answer: answer["results"], "relevance_score"),
    "infinity": ("/infinity/rerank", _documents, lambda answer: answer["results"], "relevance_score"),
    "voyage": ("/voyage/v1/rerank", _documents, lambda answer: answer["data"], "relevance_score"),
    "tei": ("/rerank", _texts, lambda answer: answer, "score"),
    "vllm": ("/score", _pairs, lambda answer: answer["data"], "score"),
}


async def native(endpoint: Opened, depth: dict[str, Any], **options: Any) -> Any:
    request = {"query": "river", "documents": [{"text": text} for text in TEXTS]}
    options = {"scoreScale": "SCORE_SCALE_SIGMOID", "depth": depth, **options}
    status, answer = await endpoint.post(f"{METHODS}Rerank", {**request, "options": options})
    assert status == 200, answer
    return answer


async def asked(endpoint: Opened, shape: Shape, depth: Any) -> tuple[dict[int, float], Any, Any]:
    """Return the scores by index in the answer's order, the answer and its headers."""
    path, request, entries, score = shape
    async with endpoint.session.post(path, json=request(depth)) as response:
        answer = await response.json()
        assert response.status == 200, answer
        return {each["index"]: each[score] for each in entries(answer)}, answer, response.headers


def scores(answer: Any) -> dict[int, float]:
    return {each.get("index", 0): each["score"] for each in answer["results"]}


@pytest.mark.parametrize("name", SHAPES)
async def test_a_client_that_sorts_by_score_is_right_whatever_the_plan(
    shared_endpoint: Opened, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for lane in shared_endpoint.bench.engine.loaded.values():
        spec = lane.members[0].spec
        monkeypatch.setattr(lane.members[0], "spec", replace(spec, depth=THREE))
    in_rounds = await native(shared_endpoint, {"mode": "DEPTH_MODE_ADAPTIVE"})
    assert in_rounds["usage"]["rounds"] == 3
    assert {each["round"] for each in in_rounds["results"]} == {1, 2, 3}

    found, _, headers = await asked(shared_endpoint, SHAPES[name], "adaptive")
    in_order = list(range(len(TEXTS))) if name == "vllm" else sorted(found, key=lambda index: -found[index])
    assert list(found) == in_order
    compared = await native(shared_endpoint, {"mode": "DEPTH_MODE_ADAPTIVE"}, comparableScores=True)
    assert found == pytest.approx(scores(compared), abs=1e-6)
    assert list(scores(compared)) == sorted(found, key=lambda index: -found[index])
    # The best chunk decides: its rounds have scores that compare.
    assert (compared["usage"]["rounds"], headers["X-Farrank-Rounds"]) == (3, "3")
    assert scores(compared) == pytest.approx(scores(in_rounds), abs=1e-6)
    # A time budget's rounds have all documents: with enough time all chunks are read.
    found, *_ = await asked(shared_endpoint, SHAPES[name], {"mode": "adaptive", "milliseconds": 600_000})
    whole = await native(shared_endpoint, {"mode": "DEPTH_MODE_ADAPTIVE", "chunks": 10_000})
    assert found == pytest.approx(scores(whole), abs=1e-6)


DEPTHS: list[tuple[Any, dict[str, Any]]] = [
    ("all", {"mode": "DEPTH_MODE_ALL"}),
    ("adaptive", {"mode": "DEPTH_MODE_ADAPTIVE"}),
    ({"mode": "adaptive", "chunks": 3}, {"mode": "DEPTH_MODE_ADAPTIVE", "chunks": 3}),
    ({"mode": "adaptive", "tokens": 900}, {"mode": "DEPTH_MODE_ADAPTIVE", "tokens": 900}),
]


@pytest.mark.parametrize("name", SHAPES)
async def test_depth_is_that_of_the_contract(shared_endpoint: Opened, name: str) -> None:
    seen = set()
    for depth, wanted in DEPTHS:
        found, answer, headers = await asked(shared_endpoint, SHAPES[name], depth)
        same = await native(shared_endpoint, wanted, comparableScores=True)
        assert found == pytest.approx(scores(same), abs=1e-6), depth
        counts = {
            state: sum(each.get(f"chunks{state.title()}", 0) for each in same["results"])
            for state in ("read", "scored", "cut")
        }
        shown = {state: int(headers[f"X-Farrank-Chunks-{state.title()}"]) for state in counts}
        assert (shown, int(headers["X-Farrank-Rounds"])) == (counts, same["usage"]["rounds"])
        if name in ("cohere", "infinity"):
            assert (answer["meta"]["chunks"], answer["meta"]["rounds"]) == (counts, same["usage"]["rounds"])
        seen.add(shown["read"])
    assert len(seen) > 2


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(
    ("depth", "words"),
    [
        ("deep", "depth: is invalid"),
        ({"chunks": 3}, "depth: is invalid"),
        ({"mode": "adaptive", "chunks": 0}, "depth.chunks: is invalid"),
        ({"mode": "adaptive", "milliseconds": 3_600_001}, "depth.milliseconds: is invalid"),
        ({"mode": "adaptive", "chunks": 3, "tokens": 9}, "depth.tokens: is a second budget beside chunks"),
        ({"mode": "all", "chunks": 3}, "depth.chunks: is a budget of adaptive depth"),
    ],
)
async def test_a_wrong_depth_is_refused_by_name(
    shared_endpoint: Opened, name: str, depth: Any, words: str
) -> None:
    path, request, *_ = SHAPES[name]
    status, said = await shared_endpoint.post(path, request(depth))
    assert status in (400, 422)
    assert words in str(said)
