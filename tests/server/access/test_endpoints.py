"""Access at both endpoints over real sockets: API keys, their rights, their rates, and the counts."""

import asyncio
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from farrank.v1 import rerank_pb2 as pb
from farrank_calls.errors import Internal
from farrank_calls.key_file import END_MARK, KeyConfig, read_keys, revoke_key
from farrank_server.access import keys
from farrank_server.config.schema import HttpConfig
from farrank_settings.errors import ConfigError
from support.keyed_endpoints import Endpoints
from support.waiting import until

TEXTS = ("the river rises in the mountains", "bread is baked")
RERANK = "/farrank.v1.RerankService/Rerank"
CONNECT = {"query": "river", "documents": [{"text": text} for text in TEXTS]}
COHERE = {"query": "river", "documents": [*TEXTS]}
TEI = {"query": "river", "texts": [*TEXTS]}
VOYAGE = {"query": "river", "documents": [*TEXTS], "top_k": 1}
SCORE = {"text_1": "river", "text_2": [*TEXTS]}
# Every dialect, and the place of its error message.
DIALECTS = [
    (RERANK, CONNECT, "message"),
    ("/v1/rerank", COHERE, "message"),
    ("/v2/rerank", COHERE, "detail"),
    ("/rerank", COHERE, "message"),
    ("/rerank", {**COHERE, "model": "maxp"}, "message"),
    ("/", TEI, "error"),
    ("/invocations", TEI, "error"),
    ("/voyage/v1/rerank", VOYAGE, "detail"),
    ("/infinity/rerank", COHERE, "detail"),
    ("/score", SCORE, "message"),
]


def request(ranker: str = "", **options: Any) -> pb.RerankRequest:
    return pb.RerankRequest(
        query="river",
        documents=[pb.Document(text=text) for text in TEXTS],
        options=pb.RerankOptions(ranker=ranker, **options),
    )


def search(index: str = "", ranker: str = "") -> pb.SearchAndRerankRequest:
    return pb.SearchAndRerankRequest(query="river", index=index, options=pb.RerankOptions(ranker=ranker))


async def test_no_call_without_a_valid_key(endpoints: Endpoints) -> None:
    expired = await endpoints.key("old", expires="2027-01-31")
    endpoints.clock.unix_s = 1_801_353_600
    for key, said, why in (
        (None, "an API key is required", "missing"),
        ("farrank_nobody", "the API key is unknown", "unknown"),
        (expired, "key old: expired at 2027-01-31", "expired"),
    ):
        for method, asked in (
            ("Rerank", request()),
            ("SearchAndRerank", search("things")),
            ("ListRankers", pb.ListRankersRequest()),
        ):
            refused = await endpoints.grpc(method, asked, key)
            assert refused.code() is grpc.StatusCode.UNAUTHENTICATED
            assert refused.details().startswith(said)
        await endpoints.counted(3, "unauthenticated_total", door="grpc", why=why)
    await endpoints.counted(3, "key_requests_total", key="old", code="UNAUTHENTICATED")
    assert (
        endpoints.count("requests_total", door="grpc", method="Rerank", ranker="", code="UNAUTHENTICATED")
        == 3
    )
    # No part of the call reached a ranker.
    assert endpoints.count("requests_total", door="grpc", method="Rerank", ranker="maxp", code="OK") == 0


@pytest.mark.parametrize(("path", "body", "where"), DIALECTS)
async def test_every_dialect_refuses_and_answers_in_its_own_shape(
    endpoints: Endpoints, path: str, body: Any, where: str
) -> None:
    key = await endpoints.key("team", rankers=["maxp"])
    status, said, headers = await endpoints.post(path, body)
    assert (status, headers["WWW-Authenticate"]) == (401, 'Bearer realm="farrank"')
    assert said[where].startswith("an API key is required")
    status, said, headers = await endpoints.post(path, body, "farrank_nobody")
    assert (status, headers["WWW-Authenticate"]) == (401, 'Bearer realm="farrank", error="invalid_token"')
    assert said[where].startswith("the API key is unknown")
    status, _, headers = await endpoints.post(path, body, key)
    assert status == 200
    assert "WWW-Authenticate" not in headers
    async with endpoints.http.post(path, json=body, headers={"X-API-Key": key}) as answer:
        assert answer.status == 200
    await endpoints.counted(2, "key_requests_total", key="team", code="OK")

    nothing = await endpoints.key("nothing", rankers=[])
    status, said, _ = await endpoints.post(path, body, nothing)
    assert status == 403
    assert "key nothing may use no " in said[where]

    slow = await endpoints.key("slow", calls_per_s=0.5)
    assert (await endpoints.post(path, body, slow))[0] == 200
    status, said, headers = await endpoints.post(path, body, slow)
    assert (status, headers["Retry-After"], headers["retry-after-ms"]) == (429, "2", "2000")
    assert said[where].startswith("key slow: has used up its calls_per_s of 0.5")


async def test_pages_without_names_need_no_key_and_pages_with_names_do(endpoints: Endpoints) -> None:
    for path in ("/health", "/ping", "/openapi.json"):
        async with endpoints.http.get(path) as answer:
            assert answer.status == 200
    async with endpoints.http.get("/docs", allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Location"]) == (307, "docs/")
    health = health_pb2_grpc.HealthStub(endpoints.channel)
    checked = await health.Check(health_pb2.HealthCheckRequest(), timeout=30)
    assert checked.status == health_pb2.HealthCheckResponse.SERVING

    async with endpoints.http.get("/info") as answer:
        assert answer.status == 401
        assert (await answer.json())["error"].startswith("an API key is required")
    key = await endpoints.key("team", rankers=["biencoder"])
    async with endpoints.http.get("/info", headers={"x-api-key": key}) as answer:
        assert (await answer.json())["served_model_name"] == "biencoder"
    await endpoints.counted(1, "key_requests_total", key="team", code="OK")


async def test_a_key_is_shown_in_either_header_and_its_own_one_wins(endpoints: Endpoints) -> None:
    key = await endpoints.key("team")
    for metadata in (
        (("x-api-key", key),),
        (("authorization", f"bearer  {key} "),),
        (("authorization", "Bearer of-a-proxy"), ("x-api-key", key)),
        (("authorization", "Basic eDp5"), ("x-api-key", key)),
    ):
        assert (await endpoints.stub.Rerank(request(), metadata=metadata, timeout=30)).results
    for metadata in (
        (("authorization", key),),
        (("authorization", f"Basic {key}"),),
        (("x-api-key", f"{key}x"), ("authorization", f"Bearer {key}")),
        (("x-api-key", ""),),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await endpoints.stub.Rerank(request(), metadata=metadata, timeout=30)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_nothing_is_read_of_a_caller_without_access(endpoints: Endpoints) -> None:
    raw: Any = endpoints.channel.unary_unary(RERANK)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await raw(b"\xff" * 1000, timeout=30)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    sent = 0

    async def pieces() -> Any:
        nonlocal sent
        for _ in range(1000):
            sent += 1
            yield b"x" * 100_000
            await asyncio.sleep(0)

    headers = {"Content-Type": "application/json"}
    async with endpoints.http.post(RERANK, data=pieces(), headers=headers) as answer:
        assert answer.status == 401
    assert sent < 1000


async def test_a_ranker_that_a_key_may_not_use_looks_like_an_absent_one(endpoints: Endpoints) -> None:
    key = await endpoints.key("team", rankers=["biencoder", "absent"], indexes=["things", "gone"])
    cases: list[tuple[str, Any, Any]] = [
        ("Rerank", lambda name: request(name), "maxp"),
        ("Rerank", lambda name: request(name), "absent"),
        ("SearchAndRerank", lambda name: search(name), "hidden"),
        ("SearchAndRerank", lambda name: search(name), "gone"),
        (
            "Rerank",
            lambda name: pb.RerankRequest(query="river", documents=[pb.Document(id="a", index=name)]),
            "hidden",
        ),
    ]
    for method, make, name in cases:
        forbidden = await endpoints.grpc(method, make(name), key)
        unknown = await endpoints.grpc(method, make("nobody"), key)
        assert forbidden.code() is unknown.code() is grpc.StatusCode.PERMISSION_DENIED
        assert forbidden.details().replace(name, "nobody") == unknown.details()
        assert "key team may use no " in unknown.details()
        assert not {"maxp", "both", "hidden"} & set(unknown.details().replace(",", " ").split())
    for model in ("maxp", "nobody"):
        status, said, _ = await endpoints.post("/v2/rerank", {**COHERE, "model": model}, key)
        assert status == 403
        assert said["message"] == (
            f"model: key team may use no ranker {model!r}; it may use: "
            f"{', '.join(('biencoder', *HttpConfig().models))}"
        )
    await endpoints.counted(
        2, "requests_total", door="http", ranker="", method="Rerank", code="PERMISSION_DENIED"
    )
    await endpoints.counted(12, "key_requests_total", key="team", code="PERMISSION_DENIED")

    # A caller that may use everything gets the names that exist.
    free = await endpoints.key("free")
    assert (await endpoints.grpc("Rerank", request("nobody"), free)).code() is grpc.StatusCode.NOT_FOUND
    assert (
        "known are: things, hidden" in (await endpoints.grpc("SearchAndRerank", search("x"), free)).details()
    )


async def test_a_keys_rankers_are_its_in_each_version(endpoints: Endpoints) -> None:
    versions = {name: each.version for name, each in endpoints.bench.engine.rankers.items()}
    key = await endpoints.key("team", rankers=["biencoder"])
    for asked in (f"biencoder@{versions['biencoder']}", f"@{versions['biencoder'][:8]}"):
        answer = await endpoints.grpc("Rerank", request(asked), key)
        assert (answer.ranker.name, answer.ranker.version) == ("biencoder", versions["biencoder"])
    other = await endpoints.grpc("Rerank", request(f"maxp@{versions['maxp']}"), key)
    assert other.code() is grpc.StatusCode.PERMISSION_DENIED
    assert versions["maxp"] not in other.details()
    body = {**COHERE, "model": f"maxp@{versions['maxp']}"}
    assert (await endpoints.post("/v1/rerank", body, key))[0] == 403
    body = {**COHERE, "model": f"biencoder@{versions['biencoder']}"}
    assert (await endpoints.post("/v1/rerank", body, key))[1]["model"] == "biencoder"


async def test_only_what_a_key_may_use_is_listed_and_is_its_default(endpoints: Endpoints) -> None:
    key = await endpoints.key("team", rankers=["both", "biencoder"], indexes=["hidden"])
    listed = await endpoints.grpc("ListRankers", pb.ListRankersRequest(), key)
    assert [each.name for each in listed.rankers] == ["both", "biencoder"]
    assert [each.name for each in listed.indexes] == ["hidden"]
    assert listed.rankers[0].options["members"] == "biencoder"
    assert "maxp" not in listed.rankers[0].runtime_reason
    assert (await endpoints.grpc("Rerank", request(), key)).ranker.name == "both"
    found = await endpoints.grpc("SearchAndRerank", search(), key)
    assert (found.index, found.ranker.name) == ("hidden", "both")
    assert (await endpoints.post("/v1/rerank", {**COHERE, "model": "rerank-v3.5"}, key))[1]["model"] == "both"
    await endpoints.counted(1, "requests_total", door="grpc", method="Rerank", ranker="both", code="OK")

    default = await endpoints.key("default", rankers=["biencoder", "maxp"])
    assert (await endpoints.grpc("Rerank", request(), default)).ranker.name == "maxp"
    nothing = await endpoints.key("nothing", rankers=[], indexes=[])
    listed = await endpoints.grpc("ListRankers", pb.ListRankersRequest(), nothing)
    assert (list(listed.rankers), list(listed.indexes)) == ([], [])
    refused = await endpoints.grpc("SearchAndRerank", search(), await endpoints.key("no-index", indexes=[]))
    assert refused.code() is grpc.StatusCode.PERMISSION_DENIED
    free = await endpoints.grpc("ListRankers", pb.ListRankersRequest(), await endpoints.key("free"))
    assert [each.name for each in free.rankers] == ["maxp", "biencoder", "both"]
    assert free.rankers[2].options["members"] == "maxp, biencoder"


async def test_a_rate_of_calls_holds_at_both_endpoints_together(endpoints: Endpoints) -> None:
    key = await endpoints.key("team", calls_per_s=2.0)
    other = await endpoints.key("other", calls_per_s=2.0)
    assert (await endpoints.grpc("Rerank", request(), key)).results
    assert (await endpoints.post(RERANK, CONNECT, key))[0] == 200
    refused = await endpoints.grpc("Rerank", request(), key)
    assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert dict(refused.trailing_metadata())["grpc-retry-pushback-ms"] == "500"
    assert (await endpoints.post(RERANK, CONNECT, key))[0] == 429
    assert (await endpoints.grpc("Rerank", request(), other)).results
    # Refused calls do not count, and a reload forgets nothing.
    await endpoints.keys.reload()
    endpoints.clock.s += 0.5
    assert (await endpoints.grpc("Rerank", request(), key)).results
    assert (await endpoints.grpc("Rerank", request(), key)).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await endpoints.counted(3, "key_rejections_total", key="team", limit="calls_per_s")
    # The refusal is not one for lack of the server's own room.
    assert endpoints.count("rejections_total", door="grpc", ranker="", reason="calls") == 0


async def test_a_rate_of_tokens_is_what_answers_say_they_cost(endpoints: Endpoints) -> None:
    first = await endpoints.grpc("Rerank", request(), await endpoints.key("free"))
    cost = first.usage.tokens
    await endpoints.counted(cost, "key_tokens_total", key="free")
    # Room for one call, and a second's worth of a further one.
    key = await endpoints.key("team", tokens_per_s=float(cost), burst_s=1.0)
    assert (await endpoints.grpc("Rerank", request(), key)).results
    refused = await endpoints.grpc("Rerank", request(), key)
    assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refused.details().startswith(f"key team: has used up its tokens_per_s of {cost}")
    wait_ms = int(dict(refused.trailing_metadata())["grpc-retry-pushback-ms"])
    assert 0 < wait_ms <= 1000
    assert (await endpoints.post("/v1/rerank", COHERE, key))[0] == 429
    endpoints.clock.s += 10
    # An invalid call costs nothing.
    wrong = await endpoints.grpc("Rerank", pb.RerankRequest(query="", documents=request().documents), key)
    assert wrong.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (await endpoints.grpc("Rerank", request(), key)).results


async def test_keys_come_and_go_while_the_server_runs(
    endpoints: Endpoints, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    key = await endpoints.key("team", rankers=["maxp"])
    assert (await endpoints.grpc("Rerank", request(), key)).results
    good = endpoints.file.read_text()
    # An invalid file changes nothing. A truncated file has lost keys, or the limits of keys.
    for wrong, message in (
        (f"[keys.new]\nsha256 = '{key}'\n{END_MARK}\n", r"keys\.new\.sha256: must be"),
        (f"{END_MARK}\n", "keys: is empty"),
        ("", "does not end with the line"),
        (good[: good.index("sha256")], "does not end with the line"),
        (good[: good.rindex("rankers")], "does not end with the line"),
    ):
        endpoints.file.write_text(wrong)
        with pytest.raises(ConfigError, match=message):
            await endpoints.keys.reload()
        assert (await endpoints.grpc("Rerank", request("maxp"), key)).results
        refused = await endpoints.grpc("Rerank", request("biencoder"), key)
        assert refused.code() is grpc.StatusCode.PERMISSION_DENIED
    endpoints.file.write_text(good)
    revoke_key(endpoints.file, "team")
    await endpoints.keys.reload()
    refused = await endpoints.grpc("Rerank", request(), key)
    assert refused.details() == "the API key is unknown or was revoked"
    assert (await endpoints.post(RERANK, CONNECT, key))[0] == 401
    assert endpoints.count("key_reloads_total", outcome="failed") == 5
    assert endpoints.count("key_reloads_total", outcome="done") == 2
    assert key not in caplog.text


async def test_keys_are_read_on_a_thread_and_by_one_at_a_time(
    endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await endpoints.key("team")
    first_reads, goes_on = threading.Event(), threading.Event()

    def slowly(path: Path) -> Mapping[str, KeyConfig]:
        """Read the file. The first read waits until the test releases it."""
        found = read_keys(path)
        if not first_reads.is_set():
            first_reads.set()
            assert goes_on.wait(60)
        return found

    monkeypatch.setattr(keys, "read_keys", slowly)
    first = asyncio.create_task(endpoints.keys.reload())
    assert await asyncio.to_thread(first_reads.wait, 60)
    revoke_key(endpoints.file, "team")
    second = asyncio.create_task(endpoints.keys.reload())
    # The event loop answers in the meantime.
    assert (await endpoints.grpc("Rerank", request(), key)).results
    goes_on.set()
    await asyncio.gather(first, second)
    # The first read still had the key, but a later one has replaced it.
    assert (await endpoints.grpc("Rerank", request(), key)).code() is grpc.StatusCode.UNAUTHENTICATED


async def health(endpoints: Endpoints, ranker: str, key: str | None = None) -> grpc.StatusCode | int:
    metadata = () if key is None else (("x-api-key", key),)
    asked = health_pb2.HealthCheckRequest(service=f"farrank.v1.RerankService/rankers/{ranker}")
    try:
        return int(
            (
                await health_pb2_grpc.HealthStub(endpoints.channel).Check(
                    asked, metadata=metadata, timeout=30
                )
            ).status
        )
    except grpc.aio.AioRpcError as error:
        return error.code()


async def test_health_tells_no_ranker_to_callers_without_a_key_for_it(endpoints: Endpoints) -> None:
    key, other = (
        await endpoints.key("team", rankers=["maxp"]),
        await endpoints.key("other", rankers=["biencoder"]),
    )
    assert await health(endpoints, "maxp", key) == health_pb2.HealthCheckResponse.SERVING
    for shown in (None, "wrong", other):
        assert await health(endpoints, "maxp", shown) is grpc.StatusCode.NOT_FOUND
    watch = health_pb2_grpc.HealthStub(endpoints.channel).Watch(
        health_pb2.HealthCheckRequest(service="farrank.v1.RerankService/rankers/maxp")
    )
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()
    assert (
        await health_pb2_grpc.HealthStub(endpoints.channel).Check(health_pb2.HealthCheckRequest())
    ).status == health_pb2.HealthCheckResponse.SERVING


async def test_keys_are_watched_whatever_went_wrong_once(
    endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keys, "WATCH_S", 0.02)
    key = await endpoints.key("team")
    failed = endpoints.count("key_reloads_total", outcome="failed")

    def fail(path: Path) -> None:
        raise RuntimeError("a disk went away")

    with monkeypatch.context() as broken:
        broken.setattr(keys, "read_keys", fail)
        watching = asyncio.create_task(endpoints.keys.watch())
        endpoints.file.write_text(endpoints.file.read_text() + "\n")
        await until(lambda: endpoints.count("key_reloads_total", outcome="failed") > failed)
    assert "RuntimeError" in caplog.text
    revoke_key(endpoints.file, "team")
    await until(lambda: endpoints.keys.identify({"x-api-key": key}.get).refusal is not None)
    watching.cancel()


@pytest.mark.parametrize("error", [Internal("ours"), RuntimeError("ours")])
async def test_a_failure_of_ours_costs_a_key_nothing(endpoints: Endpoints, error: Exception) -> None:
    key = await endpoints.key("team", tokens_per_s=100.0, burst_s=1.0)
    caller = endpoints.keys.identify({"x-api-key": key}.get).caller

    def call() -> None:
        with caller.spending() as spending:
            spending.expect(lambda: 100)
            raise error

    for _ in range(3):
        with pytest.raises(type(error)):
            call()
