"""Sentences over a real socket: with every kind of ranker, of texts and of documents of an index."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from farrank.v1 import rerank_pb2 as pb
from farrank.v1 import rerank_pb2_grpc
from farrank_first_stage.bm25 import Bm25Config
from farrank_first_stage.config import FirstStageConfig
from farrank_first_stage.lucene_stage import LuceneStage
from farrank_indexes.chunk_encoder import ChunkEncoder
from farrank_indexes.encodings_store import EncodingsStoreBuilder
from farrank_server.config.schema import ListenConfig, RankerConfig, ServerConfig
from farrank_server.engine.call import RerankCall
from farrank_server.engine.engine import Engine
from farrank_server.replica import Replica
from farrank_server.service import evidence
from support.kept_index import copy_with, kept_index

QUERY = "where does the river rise"
TEXTS = {
    "long": "Boats go on it. The river rises in the mountains! It is 🏔️ cold there. "
    + "Flour is bread. " * 200,
    "short": "A river",
    "other": "The sea is where rivers end. Bread is baked of flour.",
}
FAMILIES = ("firstp", "maxp", "parade-attn", "parade-transf-rand", "cedr-knrm", "cross-encoder", "biencoder")

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def kept(tiny_rankers: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    stores = [EncodingsStoreBuilder(ChunkEncoder(str(tiny_rankers["biencoder"])))]
    return kept_index(tmp_path_factory.mktemp("index") / "index", TEXTS, stores)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stub(
    tiny_rankers: dict[str, Path], kept: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Any]:
    older = copy_with(kept, tmp_path_factory.mktemp("older") / "index", "encodings")
    config = ServerConfig(
        rankers={name: RankerConfig(str(tiny_rankers[name])) for name in FAMILIES},
        listen=ListenConfig(port=0, metrics_port=None),
        first_stage=FirstStageConfig(indexes={"kept": Bm25Config(kept), "older": Bm25Config(older)}),
    )
    async with Replica(config) as opened, grpc.aio.insecure_channel(opened.address) as channel:
        yield rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]  # generated


def options(**others: Any) -> pb.RerankOptions:
    return pb.RerankOptions(evidence=pb.EVIDENCE_UNIT_SENTENCES, **others)


def found(answer: Any) -> dict[str, list[str]]:
    for each in answer.results:
        for sentence in each.sentences:
            assert sentence.text == TEXTS[each.id][sentence.start : sentence.end]
    return {each.id: [sentence.text for sentence in each.sentences] for each in answer.results}


@pytest.mark.parametrize("ranker", FAMILIES)
async def test_every_ranker_has_sentences(stub: Any, ranker: str) -> None:
    documents = [pb.Document(id=name, text=text) for name, text in TEXTS.items()]
    asked = options(ranker=ranker, depth=pb.Depth(mode=pb.DEPTH_MODE_ALL))
    answer = await stub.Rerank(pb.RerankRequest(query=QUERY, documents=documents, options=asked))

    by_id = found(answer)
    if ranker in ("firstp", "cedr-knrm"):
        assert by_id["long"][0] == "The river rises in the mountains!"
    assert by_id["short"] == ["A river"]
    assert by_id["other"][0] == "The sea is where rivers end."
    for each in answer.results:
        scores = [sentence.score for sentence in each.sentences]
        assert scores == sorted(scores, reverse=True)
        assert all(0 <= score < 1 for score in scores)
    assert answer.timings.evidence_ns > 0


@pytest.mark.parametrize("ranker", ["biencoder", "maxp"])
async def test_texts_are_read_from_the_index(stub: Any, ranker: str) -> None:
    """The bi-encoder's vectors are stored, so that it ranks documents without their texts."""
    searched = await stub.SearchAndRerank(
        pb.SearchAndRerankRequest(query="river rivers", index="kept", options=options(ranker=ranker))
    )
    named = [pb.Document(id=each.id, index="kept") for each in searched.results]
    asked = pb.RerankRequest(query="river rivers", documents=named, options=options(ranker=ranker))
    by_id = await stub.Rerank(asked)
    asked.options.return_texts = True
    with_texts = await stub.Rerank(asked)

    assert found(searched) == found(by_id) == found(with_texts)
    assert found(by_id)["short"] == ["A river"]
    assert all(found(by_id).values())


async def test_stored_texts_are_not_asked_of_lucene(stub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older index has none: Lucene reads them, and the same sentences are found."""
    asked = options(ranker="biencoder", context_tokens=40)

    async def search(index: str) -> Any:
        return await stub.SearchAndRerank(
            pb.SearchAndRerankRequest(query="river rivers", index=index, options=asked)
        )

    read = LuceneStage.texts
    reads: list[str] = []

    async def counted(stage: LuceneStage, *arguments: Any, **more: Any) -> list[str]:
        reads.append(stage.describe().name)
        return await read(stage, *arguments, **more)

    monkeypatch.setattr(LuceneStage, "texts", counted)
    of_store, of_lucene = await search("kept"), await search("older")

    assert found(of_store) == found(of_lucene)
    assert of_store.context == of_lucene.context
    assert all(found(of_store).values())
    assert set(reads) == {"older"}


async def test_short_chunks_of_few_stored_documents_take_no_turn(
    stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their texts were read while the query was encoded. Longer chunks are compared in turns."""
    turns: list[str] = []
    take = Engine.beside

    async def counted(engine: Engine, call: RerankCall, steps: Any) -> Any:
        turns.append(call.query)
        return await take(engine, call, steps)

    monkeypatch.setattr(Engine, "beside", counted)

    async def search(**others: Any) -> tuple[dict[str, list[str]], int]:
        asked = options(ranker="biencoder", **others)
        request = pb.SearchAndRerankRequest(query="river rivers", index="kept", options=asked)
        turns.clear()
        return found(await stub.SearchAndRerank(request)), len(turns)

    at_once, none = await search()
    assert none == 0
    _, of_fewer = await search(evidence_documents=1)
    assert of_fewer == 1
    monkeypatch.setattr(evidence, "INLINE_CHARACTERS", 1)
    assert await search() == (at_once, 1)


async def test_only_the_best_documents_have_sentences(stub: Any) -> None:
    documents = [pb.Document(id=str(n), text=f"The river {n}.") for n in range(12)]
    for asked, count in ((options(), 10), (options(evidence_documents=2), 2), (options(top_n=3), 3)):
        answer = await stub.Rerank(pb.RerankRequest(query=QUERY, documents=documents, options=asked))
        having = [bool(each.sentences) for each in answer.results]
        assert having == [True] * count + [False] * (len(having) - count)


async def test_without_the_option_there_are_none(stub: Any) -> None:
    documents = [pb.Document(id=name, text=text) for name, text in TEXTS.items()]
    for asked in (pb.RerankOptions(), pb.RerankOptions(evidence=pb.EVIDENCE_UNIT_CHUNKS)):
        answer = await stub.Rerank(pb.RerankRequest(query=QUERY, documents=documents, options=asked))
        assert not any(each.sentences for each in answer.results)
        assert answer.timings.evidence_ns == 0


async def test_a_search_that_finds_nothing_has_no_sentences(stub: Any) -> None:
    answer = await stub.SearchAndRerank(
        pb.SearchAndRerankRequest(query="xylophone", index="kept", options=options(ranker="biencoder"))
    )
    assert not answer.results


def total(pieces: Any) -> int:
    """Count words and marks, fewer than the tokens of any tokenizer here."""
    return sum(len(piece.text.split()) for piece in pieces)


@pytest.mark.parametrize("ranker", FAMILIES)
async def test_every_ranker_packs_a_context(stub: Any, ranker: str) -> None:
    documents = [pb.Document(id=name, text=text) for name, text in TEXTS.items()]
    for budget in (1, 12, 60, 5000):
        asked = pb.RerankOptions(ranker=ranker, context_tokens=budget)
        answer = await stub.Rerank(pb.RerankRequest(query=QUERY, documents=documents, options=asked))

        order = [each.index for each in answer.results]
        places = [(order.index(piece.index), piece.start) for piece in answer.context]
        assert places == sorted(places)
        assert total(answer.context) <= budget
        for piece in answer.context:
            assert piece.text == TEXTS[piece.id][piece.start : piece.end] == piece.text.strip()
            assert piece.id == documents[piece.index].id
        assert answer.timings.evidence_ns > 0
        # The sentence that stands there two hundred times is there once.
        assert sum(piece.text.count("Flour is bread.") for piece in answer.context) <= 1
        if budget == 5000:
            assert {piece.id for piece in answer.context} == set(TEXTS)
            assert any(
                p.text == "The sea is where rivers end. Bread is baked of flour." for p in answer.context
            )


async def test_a_context_of_stored_documents_has_their_texts(stub: Any) -> None:
    asked = pb.RerankOptions(ranker="biencoder", context_tokens=50)
    searched = await stub.SearchAndRerank(
        pb.SearchAndRerankRequest(query="river rivers", index="kept", options=asked)
    )
    assert {piece.id for piece in searched.context} == set(TEXTS)
    assert all(TEXTS[piece.id][piece.start : piece.end] == piece.text for piece in searched.context)


async def test_a_context_is_of_the_returned_documents(stub: Any) -> None:
    documents = [pb.Document(id=str(n), text=f"The river {n}.") for n in range(5)]
    asked = pb.RerankOptions(context_tokens=100, top_n=2)
    answer = await stub.Rerank(pb.RerankRequest(query=QUERY, documents=documents, options=asked))
    assert [piece.id for piece in answer.context] == [each.id for each in answer.results]
