"""Messages on the wire: requests as the contract has them, responses as typed values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from farrank.v1 import rerank_pb2
from farrank_client import (
    AdaptiveDepth,
    Catalog,
    Depth,
    DepthMode,
    Document,
    Evidence,
    FirstStageScore,
    IndexInfo,
    InvalidArgument,
    Limits,
    Parity,
    Passage,
    Priority,
    RankerInfo,
    RankerVersion,
    Result,
    ScoreScale,
    Sentence,
    Timings,
    Usage,
)

if TYPE_CHECKING:
    from support.scripted_server import Caller, ScriptedServer

TEXT = "Zwei Käse – 🧀 und Brot"


def test_rerank_sends_what_was_asked(call: Caller, scripted: ScriptedServer) -> None:
    def use(client: Any) -> Any:
        return client.rerank(
            "Käse?",
            [Document("a", TEXT), "no id"],
            ranker="maxp",
            top_n=1,
            max_chunks=2,
            return_texts=True,
            return_chunk_scores=True,
        )

    call(scripted.target, use)

    assert scripted.requests == [
        rerank_pb2.RerankRequest(
            query="Käse?",
            documents=[rerank_pb2.Document(id="a", text=TEXT), rerank_pb2.Document(text="no id")],
            options=rerank_pb2.RerankOptions(
                ranker="maxp", top_n=1, max_chunks=2, return_texts=True, return_chunk_scores=True
            ),
        )
    ]


def test_evidence_is_asked_for_by_its_name(call: Caller, scripted: ScriptedServer) -> None:
    call(
        scripted.target,
        lambda client: client.rerank(
            "q", ["text"], evidence="sentences", evidence_documents=2, context_tokens=9
        ),
    )

    (request,) = scripted.requests
    assert request.options == rerank_pb2.RerankOptions(
        evidence=rerank_pb2.EVIDENCE_UNIT_SENTENCES, evidence_documents=2, context_tokens=9
    )
    with pytest.raises(TypeError, match="evidence: must be 'chunks' or 'sentences'; it is 'words'"):
        call(scripted.target, lambda client: client.rerank("q", ["text"], evidence="words"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 2**31}, "k: is 2147483648; it must be at most 2147483647"),
        ({"top_n": 2**31}, "options.top_n: is 2147483648; it must be at most 2147483647"),
        ({"max_chunks": -(2**40)}, "options.max_chunks: is -1099511627776; it must be at least -2147483648"),
        (
            {"evidence_documents": 2**31},
            "options.evidence_documents: is 2147483648; it must be at most 2147483647",
        ),
        ({"context_tokens": 2**31}, "options.context_tokens: is 2147483648; it must be at most 2147483647"),
        ({"depth": AdaptiveDepth(tokens=-1)}, "options.depth.tokens: is -1; it must be at least 0"),
        (
            {"depth": AdaptiveDepth(milliseconds=2**32)},
            "options.depth.milliseconds: is 4294967296; it must be at most 4294967295",
        ),
    ],
)
def test_a_number_beyond_its_field_is_named_with_its_limits(
    call: Caller, scripted: ScriptedServer, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument) as raised:
        call(scripted.target, lambda client: client.search_and_rerank("q", **options))
    assert raised.value.message == message
    assert not scripted.requests


def test_omitted_options_are_left_to_the_server(call: Caller, scripted: ScriptedServer) -> None:
    call(scripted.target, lambda client: client.search_and_rerank("q"))

    (request,) = scripted.requests
    assert request.query == "q"
    assert not request.HasField("k")
    assert not request.options.HasField("top_n")
    assert not request.options.HasField("max_chunks")


def test_rerank_reads_the_ranking(call: Caller, scripted: ScriptedServer) -> None:
    passage = rerank_pb2.Passage(start=5, end=13, score=0.5, evidence=rerank_pb2.EVIDENCE_LEAVE_ONE_OUT)
    scripted.results = [
        rerank_pb2.Result(
            id="a",
            index=1,
            score=2.5,
            deciding_passage=passage,
            chunks=[passage],
            text=TEXT,
            tokens_cut=7,
            sentences=[rerank_pb2.Sentence(start=5, end=9, score=0.5, text=TEXT[5:9])],
            characters=len(TEXT),
        ),
        rerank_pb2.Result(id="b", score=-1),
    ]

    ranking = call(scripted.target, lambda client: client.rerank("q", ["x", "y"]))

    deciding = Passage(5, 13, 0.5, Evidence.LEAVE_ONE_OUT)
    assert ranking.results == (
        Result(
            *("a", 1, 2.5, deciding, (deciding,), TEXT, 7, None),
            sentences=(Sentence(5, 9, 0.5, "Käse"),),
            characters=len(TEXT),
        ),
        Result("b", 0, -1.0, None, (), None, 0, None),
    )
    assert deciding.text_in(TEXT) == "Käse – 🧀"
    assert ranking.query_tokens_cut == 3
    assert ranking.usage == Usage(1, 2, 3, 4, 5)
    assert ranking.timings == Timings(1, 2, 3, 4, 5, 6)
    assert ranking.ranker == RankerVersion("minilm", "v1")
    assert ranking.index is None


def test_search_tells_the_index_and_the_first_stage_score(call: Caller, scripted: ScriptedServer) -> None:
    score = rerank_pb2.FirstStageScore(index="pydoc", score=1.5)
    scripted.results = [rerank_pb2.Result(id="a", first_stage_score=0.0, first_stage_scores=[score])]

    ranking = call(scripted.target, lambda client: client.search_and_rerank("q", index="pydoc", k=9))

    assert (scripted.requests[0].index, scripted.requests[0].k) == ("pydoc", 9)
    assert ranking.index == "pydoc"
    assert ranking.results[0].first_stage_score == 0.0
    assert ranking.results[0].first_stage_scores == (FirstStageScore("pydoc", 1.5),)


def test_rankers_reads_the_catalog(call: Caller, scripted: ScriptedServer) -> None:
    beside: dict[str, Any] = {"default_k": 20, "kind": "bm25", "members": ("a", "b"), "generation": 3}
    beside |= {"tokens_for": ("minilm",), "encodings_for": ("fast",)}
    scripted.catalog = rerank_pb2.ListRankersResponse(
        rankers=[
            rerank_pb2.RankerInfo(
                name="minilm",
                version="v1",
                family="maxp",
                backbone="MiniLM",
                max_query_tokens=64,
                max_document_tokens=4096,
                window=256,
                stride=128,
                runtime="torch",
                device="cpu",
                precision="fp32",
                options={"aggregation": "max"},
                runtime_reason="torch fp32, as configured",
                depth=rerank_pb2.Depth(mode=rerank_pb2.DEPTH_MODE_ADAPTIVE, chunks=2.5),
            ),
            rerank_pb2.RankerInfo(
                name="fast",
                parity=rerank_pb2.Parity(
                    max_difference=0.5,
                    mean_difference=0.25,
                    kendall_tau=0.75,
                    top10_overlap=0.875,
                    texts=6,
                    queries=7,
                    spread=8,
                ),
            ),
        ],
        indexes=[
            rerank_pb2.IndexInfo(name="pydoc", documents=287, first_stage="bm25(k1=0.9,b=0.4)", **beside)
        ],
        limits=rerank_pb2.Limits(
            max_documents=1,
            max_document_bytes=2,
            max_query_bytes=3,
            max_request_bytes=4,
            max_queued_tokens=5,
        ),
    )

    catalog = call(scripted.target, lambda client: client.rankers())

    options = {"aggregation": "max"}
    ranker = RankerInfo(
        *("minilm", "v1", "maxp", "MiniLM", 64, 4096, 256, 128, "torch", "cpu", "fp32", options),
        runtime_reason="torch fp32, as configured",
        depth=Depth(DepthMode.ADAPTIVE, chunks=2.5),
    )
    parity = Parity(0.5, 0.25, 0.75, 0.875, texts=6, queries=7, spread=8)
    fast = RankerInfo("fast", "", "", "", 0, 0, 0, 0, "", "", "", {}, parity=parity)
    index = IndexInfo("pydoc", 287, "bm25(k1=0.9,b=0.4)", **beside)
    assert catalog == Catalog((ranker, fast), (index,), Limits(1, 2, 3, 4, 5))


def test_an_unknown_evidence_of_a_newer_server_is_not_shown() -> None:
    assert Passage.from_pb(rerank_pb2.Passage.FromString(b"\x20\x63")).evidence is Evidence.UNSPECIFIED


def test_one_string_is_no_sequence_of_documents(call: Caller, scripted: ScriptedServer) -> None:
    with pytest.raises(TypeError, match="not one string"):
        call(scripted.target, lambda client: client.rerank("q", "one document"))


def test_messages_beyond_four_megabytes_travel_both_ways(call: Caller, scripted: ScriptedServer) -> None:
    text = "x" * (5 * 2**20)
    scripted.results = [rerank_pb2.Result(text=text)]

    ranking = call(scripted.target, lambda client: client.rerank("q", [text]))

    assert len(ranking.results[0].text) == len(text)


def test_metadata_travels_with_every_call(call: Caller, scripted: ScriptedServer) -> None:
    call(scripted.target, lambda client: client.rankers(), metadata=[("authorization", "Bearer x")])

    assert scripted.metadata[0]["authorization"] == "Bearer x"


@pytest.mark.parametrize(
    "documents",
    [
        [("a", TEXT), ("b", "x")],
        [{"id": "a", "text": TEXT}, {"id": "b", "text": "x"}],
        {"a": TEXT, "b": "x"},
        [Document("a", TEXT), ["b", "x"]],
    ],
    ids=["pairs", "mappings", "one mapping", "mixed"],
)
def test_documents_may_be_pairs_and_mappings(call: Caller, scripted: ScriptedServer, documents: Any) -> None:
    call(scripted.target, lambda client: client.rerank("q", documents))

    (request,) = scripted.requests
    assert [(each.id, each.text) for each in request.documents] == [("a", TEXT), ("b", "x")]


def test_documents_may_be_named_by_index_and_id(call: Caller, scripted: ScriptedServer) -> None:
    documents = [Document("a", index="pydoc"), {"id": "b", "index": "pydoc"}, ("c", "x")]
    call(scripted.target, lambda client: client.rerank("q", documents))

    (request,) = scripted.requests
    sent = [(each.id, each.text, each.index) for each in request.documents]
    assert sent == [("a", "", "pydoc"), ("b", "", "pydoc"), ("c", "x", "")]


@pytest.mark.parametrize(
    "wrong",
    [
        7,
        None,
        ("a",),
        ("a", "b", "c"),
        ("a", 1),
        {"id": "a"},
        {"index": "pydoc"},
        {"id": "a", "text": "x", "index": "pydoc"},
        {"text": "x", "title": "t"},
        {"text": b"x"},
        b"x",
    ],
    ids=str,
)
def test_invalid_documents_are_named_with_their_position(
    call: Caller, scripted: ScriptedServer, wrong: Any
) -> None:
    with pytest.raises(TypeError, match=r"documents\[1\]: must be a text, a Document, a pair \(id, text\)"):
        call(scripted.target, lambda client: client.rerank("q", ["fine", wrong]))

    assert scripted.requests == []


def test_the_scale_of_scores_is_requested_and_returned(call: Caller, scripted: ScriptedServer) -> None:
    def use(client: Any) -> Any:
        return client.rerank("q", ["x"], score_scale=ScoreScale.SIGMOID, count_tokens_cut=True)

    assert call(scripted.target, use).score_scale is ScoreScale.UNSPECIFIED
    (request,) = scripted.requests
    assert request.options == rerank_pb2.RerankOptions(
        score_scale=rerank_pb2.SCORE_SCALE_SIGMOID, count_tokens_cut=True
    )


def test_the_priority_is_asked_for(call: Caller, scripted: ScriptedServer) -> None:
    call(scripted.target, lambda client: client.rerank("q", ["x"], priority=Priority.BATCH))
    (request,) = scripted.requests
    assert request.options == rerank_pb2.RerankOptions(priority=rerank_pb2.PRIORITY_BATCH)


@pytest.mark.parametrize(
    ("depth", "wanted"),
    [
        ("all", rerank_pb2.Depth(mode=rerank_pb2.DEPTH_MODE_ALL)),
        ("adaptive", rerank_pb2.Depth(mode=rerank_pb2.DEPTH_MODE_ADAPTIVE)),
        (AdaptiveDepth(chunks=2), rerank_pb2.Depth(mode=rerank_pb2.DEPTH_MODE_ADAPTIVE, chunks=2)),
        (AdaptiveDepth(tokens=0), rerank_pb2.Depth(mode=rerank_pb2.DEPTH_MODE_ADAPTIVE, tokens=0)),
        (None, None),
    ],
)
def test_the_depth_is_asked_for(call: Caller, scripted: ScriptedServer, depth: Any, wanted: Any) -> None:
    call(scripted.target, lambda client: client.rerank("q", ["x"], depth=depth))
    (request,) = scripted.requests
    assert request.options == rerank_pb2.RerankOptions(depth=wanted)


def test_comparable_scores_are_asked_for(call: Caller, scripted: ScriptedServer) -> None:
    call(scripted.target, lambda client: client.search_and_rerank("q", comparable_scores=True))
    (request,) = scripted.requests
    assert request.options == rerank_pb2.RerankOptions(comparable_scores=True)


def test_an_instruction_is_asked_for(call: Caller, scripted: ScriptedServer) -> None:
    call(scripted.target, lambda client: client.rerank("q", ["x"], instruction="Find the law."))
    call(scripted.target, lambda client: client.rerank("q", ["x"], instruction=None))
    given, absent = scripted.requests
    assert given.options == rerank_pb2.RerankOptions(instruction="Find the law.")
    assert absent.options == rerank_pb2.RerankOptions()


def test_another_depth_is_refused(call: Caller, scripted: ScriptedServer) -> None:
    with pytest.raises(TypeError, match=r"^depth: must be 'all', 'adaptive' or an AdaptiveDepth; it is 3$"):
        call(scripted.target, lambda client: client.rerank("q", ["x"], depth=3))
    assert scripted.requests == []


def test_an_unknown_value_of_an_enum_counts_as_not_set() -> None:
    assert ScoreScale(99) is ScoreScale.UNSPECIFIED
    assert Evidence(99) is Evidence.UNSPECIFIED


def test_an_unknown_option_is_named_with_the_known_ones(call: Caller, scripted: ScriptedServer) -> None:
    with pytest.raises(TypeError, match="no option topn; known are: ranker, top_n, "):
        call(scripted.target, lambda client: client.search_and_rerank("q", topn=3))

    assert scripted.requests == []
