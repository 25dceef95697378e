"""Requests like those of OpenSearch and Elasticsearch, and answers parsed as strictly as by them.

Sources: opensearch-project/ml-commons (CohereRerankPreProcessFunction, CohereRerankPostProcessFunction, the
connector's blueprint), elastic/elasticsearch (the services custom and hugging_face).
"""

from __future__ import annotations

import json
import math
import re
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from support.asked_server import AskedServer


def settings(server: AskedServer, heading: str) -> dict[str, Any]:
    (text,) = server.written(heading, "json")
    read: dict[str, Any] = json.loads(text)
    return read


def post(url: str, body: bytes) -> Any:
    headers = {"Content-Type": "application/json", "Authorization": "Bearer unused"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as answer:
        assert answer.headers["Content-Type"] == "application/json"
        return json.loads(answer.read())


def opensearch(server: AskedServer, query: str, model: str | None = None) -> list[float]:
    """Fill in the connector's template, and read the answer with the casts of the Java code."""
    connector = settings(server, "OpenSearch")
    (action,) = connector["actions"]
    # A list is inserted as JSON, a string as the inside of a JSON string, a number as it is.
    parameters = {
        "documents": json.dumps(server.documents),
        "query": json.dumps(query)[1:-1],
        "top_n": str(len(server.documents)),
        "model": model or connector["parameters"]["model"],
    }
    body = re.sub(r"\$\{parameters\.(\w+)\}", lambda found: parameters[found[1]], action["request_body"])
    results = post(action["url"], body.encode())["results"]
    assert isinstance(results, list)
    scores: list[float] = [math.nan] * len(results)
    for result in results:
        # (Integer), (Double): a score written as 1 would be an Integer and make the search fail.
        assert type(result["index"]) is int
        assert type(result["relevance_score"]) is float
        scores[result["index"]] = result["relevance_score"]
    return scores


def test_opensearch_gets_a_score_for_every_document_in_their_order(server: AskedServer) -> None:
    scores = opensearch(server, server.query)
    assert len(scores) == len(server.documents)
    server.check((place, scores[place]) for place in sorted(range(len(scores)), key=lambda n: -scores[n]))


def test_opensearchs_texts_may_hold_what_json_escapes(server: AskedServer) -> None:
    assert not any(map(math.isnan, opensearch(server, 'a "quoted"\nquery \\ with 😀')))


def elasticsearch_custom(server: AskedServer, query: str) -> list[tuple[int, float, str]]:
    """Fill in the service's template with JSON values, and follow its three paths."""
    service = settings(server, "Elasticsearch")["service_settings"]
    values = {"query": json.dumps(query), "input": json.dumps(server.documents)}
    body = re.sub(r"\$\{(\w+)\}", lambda found: values[found[1]], service["request"])
    answer = post(service["url"], body.encode())
    paths = service["response"]["json_parser"]
    indexes, scores, texts = (
        follow(answer, paths[name]) for name in ("reranked_index", "relevance_score", "document_text")
    )
    assert len(indexes) == len(scores) == len(texts)
    assert all(isinstance(text, str) for text in texts)
    return list(zip(indexes, scores, texts, strict=True))


def follow(answer: Any, path: str) -> list[Any]:
    """Follow a path such as `$.results[*].document.text`. Every step must exist."""
    head, _, tail = path.removeprefix("$.").partition("[*].")
    found = answer[head]
    for step in tail.split("."):
        found = [each[step] for each in found]
    return list(found)


def test_elasticsearchs_custom_service(server: AskedServer) -> None:
    found = elasticsearch_custom(server, server.query)
    server.check((index, score) for index, score, _ in found)
    assert [text for _, _, text in found] == [server.documents[index] for index, _, _ in found]


def elasticsearch_hugging_face(server: AskedServer, **body: Any) -> list[dict[str, Any]]:
    """Read an array whose entries have only the fields that the parser knows."""
    service = settings(server, "Elasticsearch, hugging_face")["service_settings"]
    request = {"texts": server.documents, "query": server.query, **body}
    answer = post(service["url"], json.dumps(request).encode())
    assert isinstance(answer, list)
    for each in answer:
        assert {"index", "score"} <= each.keys() <= {"index", "score", "text"}
        assert type(each["index"]) is int
        assert type(each["score"]) is float
    return answer


@pytest.mark.parametrize("top_n", [None, 2])
def test_elasticsearchs_hugging_face_service(server: AskedServer, top_n: int | None) -> None:
    asked = {"return_text": True, **({} if top_n is None else {"top_n": top_n})}
    found = elasticsearch_hugging_face(server, **asked)
    server.check(((each["index"], each["score"]) for each in found), top_n)
    assert [each["text"] for each in found] == [server.documents[n] for n in server.order[:top_n]]
    assert all("text" not in each for each in elasticsearch_hugging_face(server))


def test_elasticsearchs_scale_keeps_the_order(server: AskedServer) -> None:
    scores = [score for _, score, _ in elasticsearch_custom(server, server.query)]
    rescaled = [max(score, 0) + min(math.exp(score), 1) for score in scores]
    assert rescaled == sorted(rescaled, reverse=True)
    assert len(set(rescaled)) == len(set(scores))


def test_errors_are_reported_where_these_clients_look(server: AskedServer) -> None:
    with pytest.raises(urllib.error.HTTPError) as unknown:
        opensearch(server, server.query, "nobody")
    with unknown.value as answer:
        assert answer.code == 404
        assert json.loads(answer.read())["message"].startswith("model: no ranker 'nobody' here")
    with pytest.raises(urllib.error.HTTPError) as wrong:
        elasticsearch_hugging_face(server, query="")
    with wrong.value as answer:
        assert answer.code == 422
        # Its parser of errors takes only a string.
        assert json.loads(answer.read())["error"].startswith("query: is empty")
    with server.without_room(), pytest.raises(urllib.error.HTTPError) as full:
        elasticsearch_custom(server, server.query)
    with full.value as answer:
        assert (answer.code, answer.headers["Retry-After"]) == (429, "1")
