"""Cohere's schema, with the additions of Jina, vLLM and Infinity."""

import json
from itertools import pairwise
from typing import Any

import pytest

from support.documentation import ROOT
from support.http_endpoint import METHODS, Opened

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXTS = [f"the river rises {'and goes on ' * n}" for n in range(6)]
LONG = "the river meets the sea " * 600
REQUEST = {"query": "river", "documents": TEXTS}


async def native(endpoint: Opened, **options: Any) -> list[dict[str, Any]]:
    request = {"query": "river", "documents": [{"text": text} for text in TEXTS]}
    options.setdefault("scoreScale", "SCORE_SCALE_SIGMOID")
    _, answer = await endpoint.post(f"{METHODS}Rerank", {**request, "options": options})
    results: list[dict[str, Any]] = answer["results"]
    return results


@pytest.mark.parametrize(
    ("path", "version"),
    [
        ("/rerank", "2"),
        ("/v2/rerank", "2"),
        ("/v1/v2/rerank", "2"),
        ("/v1/rerank", "1"),
        ("/v1/v1/rerank", "1"),
        ("/infinity/rerank", "2"),
        ("/reranking", "2"),
        ("/v1/reranking", "2"),
    ],
)
async def test_all_paths_answer_with_the_same_ranking(
    shared_endpoint: Opened, path: str, version: str
) -> None:
    status, answer = await shared_endpoint.post(path, REQUEST)
    assert status == 200
    wanted = [
        (each["index"], pytest.approx(each["score"], abs=1e-6)) for each in await native(shared_endpoint)
    ]
    assert [(each["index"], each["relevance_score"]) for each in answer["results"]] == wanted
    assert all(each.keys() == {"index", "relevance_score"} for each in answer["results"])
    assert all(0 < each["relevance_score"] < 1 for each in answer["results"])
    assert (answer["object"], answer["model"]) == ("rerank", "maxp")
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] > 0
    assert answer["meta"]["api_version"] == {"version": version}
    assert answer["meta"]["billed_units"] == {"search_units": 1}
    assert "message" not in answer
    assert "warnings" not in answer["meta"]


async def test_everything_optional_may_be_null_or_unknown(shared_endpoint: Opened) -> None:
    names = (
        *("model", "top_n", "return_documents", "rank_fields", "max_chunks_per_doc", "max_tokens_per_doc"),
        *("relevant_spans", "raw_scores", "use_activation", "truncation", "truncate", "texts", "user"),
    )
    status, answer = await shared_endpoint.post("/v2/rerank", {**REQUEST, **dict.fromkeys(names)})
    assert (status, len(answer["results"])) == (200, len(TEXTS))
    other = {"priority": 3, "truncate_prompt_tokens": -1, "request_id": "x", "client_name": "y"}
    assert (await shared_endpoint.post("/v2/rerank", {**REQUEST, **other}))[0] == 200


async def test_the_best_alone_and_their_documents(shared_endpoint: Opened) -> None:
    _, answer = await shared_endpoint.post("/v1/rerank", {**REQUEST, "top_n": 2, "return_documents": True})
    best = (await native(shared_endpoint))[:2]
    assert [each["document"] for each in answer["results"]] == [{"text": TEXTS[one["index"]]} for one in best]
    assert len((await shared_endpoint.post("/rerank", {**REQUEST, "top_n": 0}))[1]["results"]) == len(TEXTS)
    _, answer = await shared_endpoint.post("/infinity/rerank", {**REQUEST, "return_documents": True})
    assert [each["document"] for each in answer["results"]] == [
        TEXTS[each["index"]] for each in answer["results"]
    ]


async def test_documents_that_are_objects(shared_endpoint: Opened) -> None:
    given = [{"text": text, "url": n} for n, text in enumerate(TEXTS)]
    _, answer = await shared_endpoint.post("/v1/rerank", {"query": "river", "documents": given})
    assert [each["index"] for each in answer["results"]] == [
        each["index"] for each in await native(shared_endpoint)
    ]
    fields = [
        {"title": "The river", "body": "rises", "year": 1900},
        {"title": "Bread", "body": "x", "year": 2},
    ]
    request = {
        "query": "river",
        "documents": fields,
        "rank_fields": ["year", "title"],
        "return_documents": True,
    }
    _, answer = await shared_endpoint.post("/v1/rerank", request)
    by_index = {each["index"]: each["document"] for each in answer["results"]}
    assert by_index == {
        0: {"text": "1900\nThe river", **fields[0]},
        1: {"text": "2\nBread", **fields[1]},
    }
    _, joined = await shared_endpoint.post(
        "/v1/rerank", {"query": "river", "documents": ["1900\nThe river", "2\nBread"]}
    )
    assert [each["relevance_score"] for each in joined["results"]] == [
        each["relevance_score"] for each in answer["results"]
    ]


async def test_fields_that_are_no_texts_are_read_as_json_with_their_own_characters(
    shared_endpoint: Opened,
) -> None:
    request = {"query": "river", "documents": [{"by": ["Müller"]}], "rank_fields": ["by"]}
    _, answer = await shared_endpoint.post("/v1/rerank", {**request, "return_documents": True})
    assert answer["results"][0]["document"] == {"by": ["Müller"], "text": '["Müller"]'}


@pytest.mark.parametrize(
    ("given", "text"), [({"t": "a", "text": None}, "a"), ({"t": "a", "text": "b"}, "b"), ({"t": 5}, "5")]
)
async def test_the_text_of_a_returned_document_is_a_text(
    shared_endpoint: Opened, given: dict[str, Any], text: str
) -> None:
    request = {"query": "river", "documents": [given], "rank_fields": ["t"], "return_documents": True}
    _, answer = await shared_endpoint.post("/v1/rerank", request)
    assert answer["results"][0]["document"] == {**given, "text": text}


async def test_deep_nesting_is_read_or_refused(shared_endpoint: Opened) -> None:
    # Reading the text and writing the ranked text end at slightly different depths.
    seen = set()
    for depth in (10, *range(850, 1000, 2), 100_000):
        nested = "[" * depth + "]" * depth
        body = '{"query": "a", "rank_fields": ["t"], "return_documents": true, "documents": [{"t": %s}]}'
        async with shared_endpoint.session.post("/v1/rerank", data=body % nested) as answer:
            seen.add(answer.status)
            assert answer.status in (200, 400), depth
    assert seen == {200, 400}


@pytest.mark.parametrize("raw", [{"raw_scores": True}, {"use_activation": False}])
async def test_raw_scores_where_they_are_asked_for(shared_endpoint: Opened, raw: dict[str, Any]) -> None:
    _, answer = await shared_endpoint.post("/rerank", {**REQUEST, **raw})
    wanted = await native(shared_endpoint, scoreScale="SCORE_SCALE_RAW")
    assert [each["relevance_score"] for each in answer["results"]] == pytest.approx(
        [each["score"] for each in wanted], abs=1e-6
    )


async def test_unread_text_is_reported(shared_endpoint: Opened) -> None:
    request = {"query": "river", "documents": [*TEXTS, LONG, LONG]}
    async with shared_endpoint.session.post("/v2/rerank", json={**request, "top_n": 1}) as response:
        answer = await response.json()
        cut = int(response.headers["X-Farrank-Tokens-Cut"])
        assert float(response.headers["x-total-time"]) >= 0
    warnings = answer["meta"]["warnings"]
    assert len(warnings) == 2
    assert warnings[0].endswith("tokens of document 6 were not read")
    assert cut == sum(int(each.split()[0]) for each in warnings) > 0
    status, said = await shared_endpoint.post("/v1/rerank", {**request, "truncation": False})
    assert status == 400
    assert "tokens of document 6 were not read, and truncation is not allowed" in said["detail"]
    assert (await shared_endpoint.post("/v1/rerank", {**REQUEST, "truncation": False}))[0] == 200
    async with shared_endpoint.session.post("/rerank", json=REQUEST) as response:
        assert response.headers["X-Farrank-Tokens-Cut"] == "0"


async def test_fewer_chunks_are_read_where_that_is_asked_for(shared_endpoint: Opened) -> None:
    async def tokens(**options: int) -> int:
        _, answer = await shared_endpoint.post(
            "/v2/rerank", {"query": "river", "documents": [LONG], **options}
        )
        count: int = answer["usage"]["total_tokens"]
        return count

    one = await tokens(max_chunks_per_doc=1)
    assert one == await tokens(max_tokens_per_doc=20) == await tokens(max_tokens_per_doc=150)
    assert one < await tokens(max_chunks_per_doc=3) < await tokens()
    assert await tokens(truncate_prompt_tokens=150) == one
    assert await tokens(max_tokens_per_doc=4096) == await tokens()
    assert await tokens(max_tokens_per_doc=2**40) == await tokens()


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        (
            "instruction",
            "find recipes",
            "ranker maxp takes none: family maxp has no",
        ),
        ("max_tokens_per_query", 2, "is 2; a request cannot lower the ranker's limit of "),
        ("truncate_prompt_tokens", 0, "is 0; it must be 1 or more"),
    ],
)
async def test_a_field_that_would_change_scores_is_not_ignored(
    shared_endpoint: Opened, field: str, value: Any, words: str
) -> None:
    status, said = await shared_endpoint.post("/v2/rerank", {**REQUEST, field: value})
    assert (status, said["message"].removeprefix("options.").startswith(f"{field}: {words}")) == (400, True)
    pairs = {"text_1": REQUEST["query"], "text_2": TEXTS, field: value}
    status, said = await shared_endpoint.post("/score", pairs)
    assert (status, said["message"].removeprefix("options.").startswith(f"{field}: {words}")) == (400, True)


async def test_passages_are_cohere_s_spans(shared_endpoint: Opened) -> None:
    text = "größe \U0001f600 " * 300
    request = {"query": "river", "documents": [text, "short", ""]}
    spans = {"relevant_spans": {"mode": "enabled", "threshold": 0.0}}
    _, answer = await shared_endpoint.post("/v2/rerank", {**request, **spans})
    by_index = {each["index"]: each for each in answer["results"]}
    found = by_index[0]["relevant_spans"]
    assert len(found) > 1
    assert [each["score"] for each in found] == sorted((each["score"] for each in found), reverse=True)
    # The best chunk decides a MaxP score.
    assert found[0]["score"] == pytest.approx(by_index[0]["relevance_score"])
    ordered = sorted(found, key=lambda each: each["start"])
    assert all(one["end"] <= other["start"] for one, other in pairwise(ordered))
    assert all(0 <= each["start"] < each["end"] <= len(text) for each in found)
    assert by_index[1]["relevant_spans"] == [
        {"start": 0, "end": 5, "score": pytest.approx(by_index[1]["relevance_score"])}
    ]
    assert "relevant_spans" not in by_index[2], "an empty document has no passage"
    for wanted, count in (
        ({"threshold": 0.0, "max_spans": 1}, 1),
        ({"threshold": 1.0}, 0),
        ({"threshold": 0.0, "max_spans": 0}, 0),
        ({"mode": None, "threshold": 0.0, "max_spans": 1}, 1),
        ({"mode": "disabled"}, 0),
    ):
        _, answer = await shared_endpoint.post("/v2/rerank", {**request, "relevant_spans": wanted})
        (first,) = (each for each in answer["results"] if each["index"] == 0)
        assert len(first.get("relevant_spans", ())) == count


async def test_spans_may_be_sentences(shared_endpoint: Opened) -> None:
    text = "The sea is blue. \U0001f600 A river ends in it. Bread is baked."
    request = {"query": "river", "documents": [text, "no match at all"], "evidence": "sentences"}
    _, answer = await shared_endpoint.post("/v2/rerank", request)
    by_index = {each["index"]: each["relevant_spans"] for each in answer["results"]}
    best = by_index[0][0]
    assert text[best["start"] : best["end"]] == "\U0001f600 A river ends in it."
    assert 0 < best["score"] < 1
    assert [each["score"] for each in by_index[1]] == [0]
    for more, counts in (
        ({"relevant_spans": {"threshold": 0.01}}, {0: 1, 1: 0}),
        ({"relevant_spans": {"max_spans": 2}}, {0: 2, 1: 1}),
        ({"relevant_spans": {"mode": "disabled"}}, {0: 0, 1: 0}),
        ({"evidence_documents": 2}, {0: 3, 1: 1}),
        ({"evidence": "chunks", "relevant_spans": {"threshold": 0.0}}, {0: 1, 1: 1}),
    ):
        _, answer = await shared_endpoint.post("/v2/rerank", request | more)
        assert {each["index"]: len(each.get("relevant_spans", ())) for each in answer["results"]} == counts


async def test_spans_may_be_a_packed_context(shared_endpoint: Opened) -> None:
    texts = ["Bread is baked. A river ends in the sea. It is blue.", "A river rises. Flour is white.", "Sea."]
    request = {"query": "river", "documents": texts, "context_tokens": 20}
    _, answer = await shared_endpoint.post("/v2/rerank", request)
    spans = {each["index"]: each.get("relevant_spans", []) for each in answer["results"]}
    pieces = [texts[index][one["start"] : one["end"]] for index, its in spans.items() for one in its]
    assert any("A river ends in the sea." in piece for piece in pieces)
    assert all(its == sorted(its, key=lambda one: one["start"]) for its in spans.values())
    _, answer = await shared_endpoint.post("/v2/rerank", {**request, "context_tokens": 500, "top_n": 2})
    assert [each["relevant_spans"][0]["start"] for each in answer["results"]] == [0, 0]
    assert len(answer["results"]) == 2


async def test_sentences_of_the_returned_documents_alone(shared_endpoint: Opened) -> None:
    request = {"query": "river", "documents": ["A river."] * 12, "evidence": "sentences"}
    for more, count in (({"top_n": 3}, 3), ({}, 10), ({"evidence_documents": 11}, 11)):
        _, answer = await shared_endpoint.post("/v2/rerank", request | more)
        assert sum("relevant_spans" in each for each in answer["results"]) == count


@pytest.mark.parametrize("path", ["/v1/ranking", "/voyage/v1/rerank", "/weaviate/rerank"])
async def test_other_shapes_have_no_field_for_sentences(shared_endpoint: Opened, path: str) -> None:
    status, said = await shared_endpoint.post(path, {**REQUEST, "evidence": "sentences"})
    assert status == 400
    assert "evidence: is 'sentences'; only Cohere's shape has a field for the answer" in str(said)
    status, said = await shared_endpoint.post(path, {**REQUEST, "context_tokens": 9})
    assert status == 400
    assert f"context_tokens: is 9; only Cohere's shape has a field for the answer, not {path}" in str(said)


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"query": ""}, 400, "query: is empty"),
        ({"query": None}, 400, "query: is empty"),
        ({"query": 5}, 400, "query: is invalid"),
        ({"documents": []}, 400, "documents: is empty"),
        ({"documents": None}, 400, "documents: is missing"),
        ({"documents": "text"}, 400, "documents: is invalid"),
        ({"documents": ["a", 5]}, 400, "documents[1]: is invalid"),
        ({"documents": ["a", None]}, 400, "documents[1]: is invalid"),
        ({"documents": ["a", "\ud800"]}, 400, "request: "),
        ({"documents": ["a", {"title": "b"}]}, 400, "documents[1]: has no 'text'"),
        ({"documents": [{"text": "b"}], "rank_fields": ["title"]}, 400, "documents[0]: has no 'title'"),
        ({"documents": ["a"] * 1001}, 400, "max_documents is 1000"),
        ({"top_n": -1}, 400, "top_n: is -1; it must be 0 or more"),
        ({"top_n": "two"}, 400, "top_n: is invalid"),
        ({"max_chunks_per_doc": 0}, 400, "max_chunks_per_doc: is 0; it must be 1 or more"),
        ({"max_tokens_per_doc": 0}, 400, "max_tokens_per_doc: is 0; it must be 1 or more"),
        ({"evidence": "words"}, 400, "evidence: is invalid"),
        ({"evidence": "sentences", "evidence_documents": -1}, 400, "evidence_documents: is -1; it must be 0"),
        ({"evidence_documents": 2}, 400, "options.evidence_documents: is 2; it is allowed only if"),
        ({"context_tokens": -1}, 400, "context_tokens: is -1; it must be 0 or more"),
        ({"context_tokens": 65_537}, 400, "options.context_tokens: is 65537; at most 65536 are allowed"),
        ({"relevant_spans": {"mode": "on"}}, 400, "relevant_spans.mode: is invalid"),
        ({"relevant_spans": {"max_spans": -1}}, 400, "relevant_spans.max_spans: is -1; it must be 0 or more"),
        ({"model": "gpt"}, 404, "known are: maxp, biencoder, both, rerank-*"),
    ],
)
async def test_problems_are_reported_where_each_client_looks(
    shared_endpoint: Opened, change: dict[str, Any], status: int, words: str
) -> None:
    seen, said = await shared_endpoint.post("/v2/rerank", {**REQUEST, **change})
    assert seen == status
    assert said["message"] == said["detail"] == said["error"]["message"]
    assert words in said["message"]
    assert said["error"]["code"] == status
    assert said["id"]


@pytest.mark.parametrize(
    ("model", "ranker"),
    [
        ("both", "both"),
        ("biencoder", "biencoder"),
        ("", "maxp"),
        ("rerank-english-v3.0", "maxp"),
        ("rerank-v3.5", "maxp"),
        ("jina-reranker-v2-base-multilingual", "maxp"),
        ("default/not-specified", "maxp"),
        ("Cohere-rerank-v4.0-pro", "maxp"),
        ("cohere/rerank-v3.5", "maxp"),
        ("cohere.rerank-v3-5:0", "maxp"),
        ("jinaai/Jina-Reranker-v3", "maxp"),
    ],
)
async def test_models_are_rankers_or_names_that_stand_for_one(
    shared_endpoint: Opened, model: str, ranker: str
) -> None:
    status, answer = await shared_endpoint.post("/v1/rerank", {**REQUEST, "model": model})
    assert (status, answer["model"]) == (200, ranker)


async def test_numbers_and_booleans_may_be_texts(shared_endpoint: Opened) -> None:
    """RAGFlow's client of Xinference writes both so."""
    asked = {"return_documents": "true", "return_len": "true", "top_n": "2", "max_chunks_per_doc": None}
    status, answer = await shared_endpoint.post("/v1/rerank", {**REQUEST, **asked})
    _, plain = await shared_endpoint.post("/v1/rerank", {**REQUEST, "return_documents": True, "top_n": 2})
    assert (status, answer["results"]) == (200, plain["results"])
    assert len(answer["results"]) == 2
    assert answer["results"][0]["document"]["text"] in TEXTS
    assert answer["usage"] == plain["usage"]


PARTS = [{"type": "text", "text": text} for text in TEXTS]
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}


@pytest.mark.parametrize(
    "request_",
    [
        {"query": {"text": "river"}, "documents": TEXTS},
        {
            "query": {"content": [{"type": "text", "text": "river"}]},
            "documents": PARTS,
        },
        {"query": "river", "documents": [{"content": [part]} for part in PARTS]},
        {"query": "river", "documents": [{"content": text} for text in TEXTS]},
        {"query": "river", "documents": {"content": PARTS}},
    ],
)
async def test_content_parts_are_read_as_their_texts(
    shared_endpoint: Opened, request_: dict[str, Any]
) -> None:
    status, answer = await shared_endpoint.post("/v1/rerank", {**request_, "return_documents": True})
    _, plain = await shared_endpoint.post("/v1/rerank", REQUEST)
    assert status == 200
    assert [(each["index"], each["relevance_score"]) for each in answer["results"]] == [
        (each["index"], pytest.approx(each["relevance_score"], abs=1e-6)) for each in plain["results"]
    ]
    assert all(each["document"]["text"] == TEXTS[each["index"]] for each in answer["results"])


async def test_the_parts_of_one_document_are_lines(shared_endpoint: Opened) -> None:
    document = {"content": [{"type": "text", "text": "the river"}, {"type": "text", "text": "rises"}]}
    request = {"query": "river", "documents": [document], "return_documents": True}
    _, answer = await shared_endpoint.post("/v2/rerank", request)
    assert answer["results"][0]["document"] == {**document, "text": "the river\nrises"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"documents": [{"content": [PARTS[0], PICTURE]}]},
            "documents[0].content[1]: has no 'text'; it",
        ),
        ({"documents": {"content": [PARTS[0], PICTURE]}}, "documents.content[1]: has no 'text'; it holds"),
        ({"documents": ["a", {"image": "https://a"}]}, "documents[1]: has no 'text'; it holds 'image', and"),
        ({"query": {"image": "https://a"}}, "query: has no 'text'; it holds 'image', and rankers read"),
        ({"query": {"content": [PICTURE]}}, "query.content[0]: has no 'text'; it holds 'image_url', and"),
        ({"documents": [{"content": [5]}]}, "documents[0].content[0]: has no 'text'"),
        ({"documents": {}}, "documents.content[0]: has no 'text'"),
    ],
)
async def test_an_image_is_refused_by_its_name(
    shared_endpoint: Opened, change: dict[str, Any], words: str
) -> None:
    status, said = await shared_endpoint.post("/v1/rerank", {**REQUEST, **change})
    assert (status, said["message"][: len(words)]) == (400, words)


async def test_the_first_request_of_the_page_gets_an_answer_like_the_one_printed_there(
    shared_endpoint: Opened,
) -> None:
    page = (ROOT / "docs/reference/http.md").read_text(encoding="utf-8")
    first, printed = page.split("```bash\n")[2].split("```json\n")[:2]
    body = json.loads(first[first.index("'") + 1 : first.rindex("'")])
    wanted = json.loads(printed.partition("```")[0])
    status, answer = await shared_endpoint.post("/v2/rerank", body)
    assert status == 200
    assert answer.keys() == wanted.keys()
    assert answer["meta"].keys() == wanted["meta"].keys()
    for mine, its in zip(answer["results"], wanted["results"], strict=True):
        assert mine.keys() <= its.keys() == {"index", "relevance_score", "relevant_spans"}
    assert answer["meta"]["chunks"].keys() == wanted["meta"]["chunks"].keys()
