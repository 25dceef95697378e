"""Each invalid request is refused with the field, the problem and the limit; others pass unchanged."""

import asyncio

import pytest

from farrank.v1 import rerank_pb2 as pb
from farrank_calls.errors import InvalidArgument
from farrank_server.config.schema import DepthConfig, LimitsConfig
from farrank_server.service import validate

LIMITS = LimitsConfig(max_documents=3, max_document_bytes=40, max_query_bytes=20)


def request(query: str = "q", documents: int = 1, **options: int) -> pb.RerankRequest:
    return pb.RerankRequest(
        query=query,
        documents=[pb.Document(id=str(n), text=f"text {n}") for n in range(documents)],
        options=pb.RerankOptions(**options),  # type: ignore[arg-type]  # names and numbers alone
    )


async def test_ids_and_texts_are_handed_on() -> None:
    assert await validate.documents_of(request(documents=3), LIMITS) == validate.RequestDocuments(
        ["0", "1", "2"],
        ("text 0", "text 1", "text 2"),
        {},
    )


@pytest.mark.parametrize("text", ["x" * 40, "é" * 20, "\U0001f600" * 10, ""])
async def test_a_text_may_have_as_many_bytes_as_the_limit(text: str) -> None:
    document = pb.Document(text=text)
    given = await validate.documents_of(pb.RerankRequest(query="q", documents=[document]), LIMITS)
    assert given.texts == (text,)
    longer = pb.Document(text=text + "y" * (41 - len(text.encode())))
    with pytest.raises(
        InvalidArgument, match=r"^documents\[0\]\.text: has 41 bytes; max_document_bytes is 40$"
    ):
        await validate.documents_of(pb.RerankRequest(query="q", documents=[longer]), LIMITS)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (request(""), "query: is empty; it must hold at least one word"),
        (request(" \t"), "query: is blank; it must hold at least one word"),
        (request("é" * 11), "query: has 22 bytes; max_query_bytes is 20"),
        (request(documents=0), "documents: is empty; at least 1 document is needed"),
        (request(documents=4), "documents: has 4 entries; max_documents is 3"),
        (request(top_n=-1), "options.top_n: is -1; it must be 0 "),
        (
            request(evidence=7),
            "options.evidence: is 7; it must be one of EVIDENCE_UNIT_CHUNKS (1), EVIDENCE_UNIT_SENTENCES (2)",
        ),
        (
            request(evidence=2, evidence_documents=-1),
            "options.evidence_documents: is -1; it must be 0 ",
        ),
        (
            request(evidence=2, evidence_documents=4),
            "options.evidence_documents: is 4; max_documents is 3",
        ),
        (
            request(evidence_documents=2),
            "options.evidence_documents: is 2; it is allowed only if evidence is EVIDENCE_UNIT_SENTENCES",
        ),
        (request(context_tokens=-1), "options.context_tokens: is -1; it must be 0 "),
        (request(context_tokens=65_537), "options.context_tokens: is 65537; at most 65536 are allowed"),
        (request(max_chunks=-2), "options.max_chunks: is -2; it must be 0 "),
        (
            request(priority=7),
            "options.priority: is 7; it must be one of PRIORITY_INTERACTIVE (1), PRIORITY_BATCH (2)",
        ),
        (
            pb.RerankRequest(
                query="q", documents=[pb.Document(id="a"), pb.Document(id="b"), pb.Document(id="a")]
            ),
            "documents[2].id: 'a' stands at documents[0], too; ids must be unique",
        ),
        (
            pb.RerankRequest(query="q", documents=[pb.Document(), pb.Document(), pb.Document(id="a")]),
            "documents[1].id: '' stands at documents[0], too; ids must be unique",
        ),
    ],
)
async def test_problems_are_named(wrong: pb.RerankRequest, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await validate.documents_of(wrong, LIMITS)
    assert str(caught.value).startswith(message)


ALL, ADAPTIVE = pb.DEPTH_MODE_ALL, pb.DEPTH_MODE_ADAPTIVE


@pytest.mark.parametrize(
    ("depth", "wanted"),
    [
        (None, None),
        (pb.Depth(), None),
        (pb.Depth(mode=ALL), DepthConfig()),
        (pb.Depth(mode=ADAPTIVE), DepthConfig("adaptive")),
        (pb.Depth(mode=ADAPTIVE, chunks=2.5), DepthConfig("adaptive", chunks=2.5)),
        (pb.Depth(mode=ADAPTIVE, tokens=9), DepthConfig("adaptive", tokens=9)),
        (pb.Depth(mode=ADAPTIVE, milliseconds=9), DepthConfig("adaptive", milliseconds=9)),
    ],
)
def test_the_depth_is_read(depth: pb.Depth | None, wanted: DepthConfig | None) -> None:
    assert validate.depth_of(pb.RerankOptions(depth=depth)) == wanted


@pytest.mark.parametrize(
    ("depth", "message"),
    [
        (
            pb.Depth(mode=7),  # type: ignore[arg-type]  # of a newer client
            "options.depth.mode: is 7; it must be one of DEPTH_MODE_ALL (1), DEPTH_MODE_ADAPTIVE (2)",
        ),
        (pb.Depth(chunks=4), "options.depth.mode: is 0; it must be one of "),
        (
            pb.Depth(mode=ALL, tokens=4),
            "options.depth.tokens: is a budget of adaptive depth, and mode is all",
        ),
        (
            pb.Depth(mode=ADAPTIVE, chunks=0.5),
            "options.depth.chunks: 0.5 is not allowed; it must be between 1 ",
        ),
        (
            pb.Depth(mode=ADAPTIVE, chunks=float("nan")),
            "options.depth.chunks: nan is not allowed; it must be ",
        ),
        (
            pb.Depth(mode=ADAPTIVE, tokens=0),
            "options.depth.tokens: 0 is not allowed; it must be between 1 and",
        ),
        (
            pb.Depth(mode=ADAPTIVE, milliseconds=3_600_001),
            "options.depth.milliseconds: 3600001 is not allowed; it must be between 1 and 3600000",
        ),
        (
            pb.Depth(mode=ADAPTIVE, tokens=9, milliseconds=9),
            "options.depth.milliseconds: is a second budget beside tokens; there can be one",
        ),
    ],
)
def test_problems_of_a_depth_are_named(depth: pb.Depth, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        validate.depth_of(pb.RerankOptions(depth=depth))
    assert str(caught.value).startswith(message)


async def test_ids_may_all_be_empty() -> None:
    documents = [pb.Document(text="a"), pb.Document(text="a")]
    given = await validate.documents_of(pb.RerankRequest(query="q", documents=documents), LIMITS)
    assert given.ids == ["", ""]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (pb.SearchAndRerankRequest(query=""), "query: is empty"),
        (pb.SearchAndRerankRequest(query="q", k=-1), "k: is -1; it must be 0 "),
        (pb.SearchAndRerankRequest(query="q", k=4), "k: is 4; max_documents is 3"),
        (pb.SearchAndRerankRequest(query="q", options=pb.RerankOptions(top_n=-5)), "options.top_n: is -5"),
    ],
)
def test_a_search_is_checked_alike(wrong: pb.SearchAndRerankRequest, message: str) -> None:
    validate.check_search(pb.SearchAndRerankRequest(query="q", k=3), LIMITS)
    with pytest.raises(InvalidArgument) as caught:
        validate.check_search(wrong, LIMITS)
    assert str(caught.value).startswith(message)


async def test_others_have_their_turn_between_the_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validate, "TURN_CHARACTERS", 10)
    checking = asyncio.create_task(validate.documents_of(request(documents=3), LIMITS))
    # 3 texts of 6 characters: it pauses after the second.
    for _ in range(3):
        await asyncio.sleep(0)
    assert not checking.done()
    assert len((await checking).texts) == 3
