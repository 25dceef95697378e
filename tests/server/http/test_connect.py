"""The contract in JSON and in protobuf, as sent by Connect clients and curl."""

from typing import Any

import pytest
from google.protobuf import json_format

from farrank.v1 import rerank_pb2 as pb
from support.engine_bench import until
from support.http_endpoint import METHODS, Opened

pytestmark = pytest.mark.asyncio(loop_scope="module")

RERANK = f"{METHODS}Rerank"
DOCUMENTS = [{"id": str(n), "text": f"the river rises {'and goes on ' * n}"} for n in range(5)]


async def test_an_answer_is_the_contracts_message_in_json(shared_endpoint: Opened) -> None:
    request = {"query": "river", "documents": DOCUMENTS, "options": {"topN": 3, "return_chunk_scores": True}}
    status, answer = await shared_endpoint.post(RERANK, request)
    assert status == 200
    message = json_format.ParseDict(answer, pb.RerankResponse())
    assert len(message.results) == 3
    assert message.ranker.name == "maxp"
    assert all(each.chunks and each.deciding_passage.end for each in message.results)
    # Zeros are written, too, so that a reader of the JSON need not know the defaults.
    assert {each["index"] for each in answer["results"]} <= set(range(5))
    assert answer["queryTokensCut"] == 0
    assert answer["scoreScale"] == "SCORE_SCALE_RAW"


async def test_adaptive_depth_is_asked_for_in_json(shared_endpoint: Opened) -> None:
    documents = [{"text": f"{n} " + "the river rises " * 400} for n in range(5)]
    options = {"ranker": "maxp", "depth": {"mode": "DEPTH_MODE_ADAPTIVE", "chunks": 2}}
    request = {"query": "river", "documents": documents, "options": options}
    status, answer = await shared_endpoint.post(RERANK, request)
    assert status == 200
    assert {each["chunksRead"] for each in answer["results"]} == {2}
    assert {each["round"] for each in answer["results"]} == {answer["usage"]["rounds"]} == {1}
    options["depth"] = {"mode": "DEPTH_MODE_ADAPTIVE", "chunks": 0}
    status, refused = await shared_endpoint.post(RERANK, request)
    assert (status, refused["message"]) == (
        400,
        "options.depth.chunks: 0.0 is not allowed; it must be between 1 and 10000",
    )


async def test_binary_and_json_say_the_same(shared_endpoint: Opened) -> None:
    request = pb.RerankRequest(query="river", documents=[pb.Document(**each) for each in DOCUMENTS])
    headers = {"Content-Type": "application/proto", "Connect-Protocol-Version": "1"}
    async with shared_endpoint.session.post(
        RERANK, data=request.SerializeToString(), headers=headers
    ) as answer:
        assert (answer.status, answer.content_type) == (200, "application/proto")
        binary = pb.RerankResponse.FromString(await answer.read())
    _, tree = await shared_endpoint.post(
        RERANK, json_format.MessageToDict(request), Connect_Protocol_Version="1"
    )
    plain = json_format.ParseDict(tree, pb.RerankResponse())
    assert [(each.id, each.score) for each in plain.results] == [
        (each.id, each.score) for each in binary.results
    ]


async def test_the_other_methods(shared_endpoint: Opened, first_stage: Any) -> None:
    status, found = await shared_endpoint.post(f"{METHODS}SearchAndRerank", {"query": "river", "k": 2})
    assert (status, found["index"], len(found["results"])) == (200, "things", 2)
    assert first_stage.asked == [("river", 2)]
    async with shared_endpoint.session.post(
        f"{METHODS}ListRankers", headers={"Content-Type": "application/json; charset=utf-8"}
    ) as answer:
        listed = await answer.json()
    assert [each["name"] for each in listed["rankers"]] == ["maxp", "biencoder", "both"]


async def test_unknown_fields_are_refused_by_their_path(shared_endpoint: Opened) -> None:
    request: dict[str, Any] = {"query": "river", "documents": [*DOCUMENTS, {"id": "x", "txt": "the river"}]}
    status, said = await shared_endpoint.post(RERANK, request)
    assert (status, said["code"]) == (400, "invalid_argument")
    assert said["message"] == "documents[5].txt: is not a field of Document; its fields are id, text, index"
    request = {"query": "river", "documents": DOCUMENTS, "options": {"newer": 1}}
    status, said = await shared_endpoint.post(RERANK, request)
    assert (status, said["code"]) == (400, "invalid_argument")
    assert said["message"].startswith(
        "options.newer: is not a field of RerankOptions; its fields are ranker, topN,"
    )


async def test_documents_of_an_index_are_named_in_json(shared_endpoint: Opened, first_stage: Any) -> None:
    named = [{"id": "rhine", "index": "things"}, {"id": "bread", "index": "things"}]
    brought = [{"id": each["id"], "text": first_stage.documents[each["id"]]} for each in named]
    answers = [
        await shared_endpoint.post(RERANK, {"query": "river", "documents": each}) for each in (named, brought)
    ]
    assert [status for status, _ in answers] == [200, 200]
    scores = [{each["id"]: each["score"] for each in answer["results"]} for _, answer in answers]
    assert scores[0] == scores[1]
    assert len(set(scores[0].values())) == 2


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("", "query: is empty"),
        ("{", "is not JSON"),
        ("[]", "request: is invalid: expected `object`, got `array`"),
        ("null", "request: is invalid: expected `object`, got `null`"),
        ("[" * 60_000, "expected `object`, got `array`"),
        ('{"options": {"a": ' + "[" * 60_000, "is not JSON"),
        ('{"query": "a\\ud800b"}', "request: "),
        (
            '{"query": "q", "documents": [{"text": "a"}, {"text": 1}]}',
            "documents[1].text: is invalid",
        ),
        (b'{"query": "\xff"}', "is not JSON"),
        ('{"query": 5}', "query"),
        ('{"query": "q", "documents": "text"}', "documents"),
        ('{"query": "q", "documents": []}', "documents: is empty"),
        ('{"query": "q", "documents": [{"text": "a"}], "options": {"topN": -1}}', "options.top_n: is -1"),
        ('{"query": "q", "documents": [{"text": "a"}], "options": {"topN": "x"}}', "topN"),
        ('{"query": "q", "documents": {"' + "x" * 5000 + '": 1}}', "documents"),
    ],
)
async def test_an_invalid_request_is_refused_in_connects_format(
    shared_endpoint: Opened, body: str | bytes, words: str
) -> None:
    headers = {"Content-Type": "application/json"}
    async with shared_endpoint.session.post(RERANK, data=body, headers=headers) as answer:
        assert (answer.status, answer.content_type) == (400, "application/json")
        said = await answer.json()
    assert said["code"] == "invalid_argument"
    assert words in said["message"]
    assert len(said["message"]) < 500


async def test_names_that_are_none(shared_endpoint: Opened) -> None:
    documents = {"query": "q", "documents": DOCUMENTS}
    status, said = await shared_endpoint.post(RERANK, {**documents, "options": {"ranker": "nobody"}})
    assert (status, said["code"]) == (404, "not_found")
    assert "known are: maxp, biencoder, both" in said["message"]
    status, said = await shared_endpoint.post(f"{METHODS}Rank", documents)
    assert (status, said["code"]) == (404, "unimplemented")
    assert "Rerank, SearchAndRerank, ListRankers" in said["message"]
    await until(
        lambda: (
            shared_endpoint.count("requests_total", method="Rerank", ranker="unknown", code="NOT_FOUND") == 1
        )
    )


async def test_requests_unlike_connects_are_refused(shared_endpoint: Opened) -> None:
    async with shared_endpoint.session.post(RERANK, data="query=q") as answer:
        assert (answer.status, answer.headers["Accept-Post"]) == (415, "application/json, application/proto")
    async with shared_endpoint.session.get(RERANK) as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, "POST")
    status, said = await shared_endpoint.post(RERANK, {}, Connect_Protocol_Version="2")
    assert (status, said["code"]) == (400, "invalid_argument")


async def test_a_long_answer_and_a_long_request_are_whole(shared_endpoint: Opened) -> None:
    """Another thread converts them."""
    documents = [{"id": f"é{n}", "text": "the river\n" * 2000} for n in range(20)]
    request = {"query": "river", "documents": documents, "options": {"returnTexts": True}}
    status, answer = await shared_endpoint.post(RERANK, request)
    assert status == 200
    assert {each["id"]: each["text"] for each in answer["results"]} == {
        each["id"]: each["text"] for each in documents
    }
