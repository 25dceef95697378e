"""Documents with stored tokens or encodings, over a real socket: the same answers as from their texts."""

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from farrank.v1 import rerank_pb2 as pb
from farrank.v1 import rerank_pb2_grpc
from farrank_first_stage.bm25 import Bm25Config
from farrank_first_stage.config import FirstStageConfig
from farrank_first_stage.fusion import FusionConfig
from farrank_indexes.chunk_encoder import ChunkEncoder
from farrank_indexes.document import IndexDocument
from farrank_indexes.encodings_store import SCORE_WITHIN, EncodingsStoreBuilder
from farrank_indexes.index_builder import IndexOptions, Store, change_index
from farrank_indexes.token_store import TokenStoreBuilder, key_of
from farrank_rankers.ensemble import Ensemble, save_ensemble
from farrank_rankers.files.open import open_ranker, open_reader
from farrank_server.config.schema import LimitsConfig, ListenConfig, RankerConfig, ServerConfig
from farrank_server.replica import Replica
from farrank_settings.errors import ConfigError
from support.kept_index import copy_with, kept_index

QUERY = "where does the river rise"
TEXTS = {
    "long": "The river rises in the mountains, far from the sea. " * 60,
    "short": "A river.",
    "odd": "Le fleuve\r\n\r\n  naît 🏔️🏔️ ici:   the river   rises — naïve café, Ünïcödé.\t" * 9,
    "other": "The sea is where a river ends, and bread is baked of flour. " * 20,
}
FAMILIES = ("firstp", "maxp", "parade-transf-rand", "cedr-knrm", "cross-encoder", "biencoder")


@pytest.fixture(scope="module")
def kept(tiny_rankers: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = open_reader(str(tiny_rankers["maxp"])).tokenizer
    stores: list[Store] = [
        TokenStoreBuilder(tokenizer),
        EncodingsStoreBuilder(ChunkEncoder(str(tiny_rankers["biencoder"]))),
    ]
    return kept_index(tmp_path_factory.mktemp("kept-index") / "index", TEXTS, stores)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(
    tiny_rankers: dict[str, Path], kept: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Replica]:
    folder = tmp_path_factory.mktemp("indexes")
    both = folder / "both"
    members = {name: open_ranker(str(tiny_rankers[name])) for name in ("maxp", "biencoder")}
    save_ensemble(Ensemble(members), both)
    rankers = {name: RankerConfig(str(tiny_rankers[name])) for name in FAMILIES}
    indexes = {
        "kept": Bm25Config(kept),
        "plain": Bm25Config(copy_with(kept, folder / "plain")),
        "encoded": Bm25Config(copy_with(kept, folder / "encoded", "encodings")),
        "fused": FusionConfig(of=("plain", "kept"), method="linear"),
    }
    config = ServerConfig(
        rankers={**rankers, "both": RankerConfig(str(both))},
        listen=ListenConfig(port=0, metrics_port=None),
        limits=LimitsConfig(max_documents=50),
        first_stage=FirstStageConfig(indexes=indexes),
        cache_bytes=0,
    )
    async with Replica(config) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stub(replica: Replica) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(replica.address) as channel:
        yield rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]  # generated


pytestmark = pytest.mark.asyncio(loop_scope="module")


def evidence(answer: Any) -> list[Any]:
    """Return all parts of an answer that must not depend on the path, except scores."""
    return [
        (
            *(each.id, each.index, each.text, each.tokens_cut, each.characters, each.characters_cut),
            (each.deciding_passage.start, each.deciding_passage.end),
            [(chunk.start, chunk.end, chunk.evidence) for chunk in each.chunks],
        )
        for each in answer.results
    ]


def scores(answer: Any) -> list[float]:
    """Return all scores of an answer."""
    return [
        score for each in answer.results for score in (each.score, *(chunk.score for chunk in each.chunks))
    ]


def assert_same(one: Any, other: Any, within: float) -> None:
    assert evidence(one) == evidence(other)
    assert scores(one) == pytest.approx(scores(other), abs=within)
    assert one.query_tokens_cut == other.query_tokens_cut
    assert one.usage.chunks == other.usage.chunks


OPTIONS: list[dict[str, Any]] = [
    {"return_chunk_scores": True, "count_tokens_cut": True},
    {
        "return_chunk_scores": True,
        "count_tokens_cut": True,
        "max_chunks": 1,
        "return_texts": True,
        "top_n": 2,
    },
    {"return_chunk_scores": True, "count_tokens_cut": True, "max_chunks": 2},
]


async def test_adaptive_depth_reads_stored_tokens_as_it_reads_texts(stub: Any) -> None:
    depth = pb.Depth(mode=pb.DEPTH_MODE_ADAPTIVE, chunks=2)
    for ranker in ("maxp", "cedr-knrm", "cross-encoder"):
        options = pb.RerankOptions(ranker=ranker, depth=depth, return_chunk_scores=True)
        texts, tokens = [
            await stub.SearchAndRerank(pb.SearchAndRerankRequest(query=QUERY, index=index, options=options))
            for index in ("plain", "kept")
        ]
        assert_same(tokens, texts, within=1e-4)
        assert (texts.usage.stored_documents, tokens.usage.stored_documents) == (0, len(TEXTS))
        assert tokens.usage.chunks == sum(each.chunks_read for each in tokens.results) <= 2 * len(TEXTS)
        assert all(each.chunks_scored >= each.chunks_read for each in tokens.results)


@pytest.mark.parametrize("options", OPTIONS)
async def test_stored_tokens_give_what_texts_give(stub: Any, options: dict[str, Any]) -> None:
    for ranker in (*FAMILIES, "both"):
        asked = {
            index: await stub.SearchAndRerank(
                pb.SearchAndRerankRequest(
                    query=QUERY, index=index, options=pb.RerankOptions(ranker=ranker, **options)
                )
            )
            for index in ("kept", "plain", "fused", "encoded")
        }
        assert len(asked["kept"].results) == options.get("top_n", len(TEXTS))
        assert asked["plain"].usage.stored_documents == 0
        assert asked["kept"].usage.stored_documents == asked["fused"].usage.stored_documents == len(TEXTS)
        encodes = ranker in ("biencoder", "both")
        for index in ("kept", "fused", "encoded"):
            # Stored vectors are rounded to 16 bits.
            assert_same(asked[index], asked["plain"], SCORE_WITHIN if encodes else 1e-5)
        # Only tokens tell how much max_chunks cuts.
        alone = encodes and "max_chunks" not in options
        assert asked["encoded"].usage.stored_documents == (len(TEXTS) if alone else 0)
        if ranker == "biencoder":
            assert asked["kept"].usage.pairs == 1  # the query's
            assert asked["kept"].usage.cached_chunks == 0
        else:
            assert (asked["kept"].usage.tokens < asked["plain"].usage.tokens) == encodes
        for each in asked["kept"].results:
            assert each.characters == len(TEXTS[each.id])
            assert each.text == (TEXTS[each.id] if "return_texts" in options else "")
            assert each.HasField("text") == ("return_texts" in options)


async def test_documents_by_id_are_ranked_as_if_they_were_brought(stub: Any) -> None:
    own = pb.Document(id="own", text="my own river")
    brought = [*(pb.Document(id=doc_id, text=text) for doc_id, text in TEXTS.items()), own]
    for index in ("kept", "plain", "fused"):
        named = [*(pb.Document(id=doc_id, index=index) for doc_id in TEXTS), own]
        for ranker in ("maxp", "both"):
            options = pb.RerankOptions(ranker=ranker, return_texts=True, count_tokens_cut=True)
            by_text = await stub.Rerank(pb.RerankRequest(query=QUERY, documents=brought, options=options))
            by_id = await stub.Rerank(pb.RerankRequest(query=QUERY, documents=named, options=options))
            assert by_id.usage.stored_documents == (0 if index == "plain" else len(TEXTS))
            assert by_text.usage.stored_documents == 0
            assert_same(by_id, by_text, SCORE_WITHIN if ranker == "both" else 1e-5)


@pytest.mark.parametrize(
    ("documents", "code", "said"),
    [
        (
            [pb.Document(id="short", index="kept"), pb.Document(id="x", index="kept")],
            grpc.StatusCode.INVALID_ARGUMENT,
            "documents: index kept has no documents[1] 'x'",
        ),
        (
            [pb.Document(id="x", index="plain"), pb.Document(id="y", index="plain")],
            grpc.StatusCode.INVALID_ARGUMENT,
            "documents: index plain has no documents[0] 'x', documents[1] 'y'",
        ),
        (
            [pb.Document(id="short", index="kept"), pb.Document(id="b", index="nowhere")],
            grpc.StatusCode.NOT_FOUND,
            "documents[1].index: no index 'nowhere' here; known are: kept, plain, encoded, fused",
        ),
        (
            [pb.Document(id="short", index="kept", text="and text")],
            grpc.StatusCode.INVALID_ARGUMENT,
            "documents[0].text: must be empty where index names an index, here 'kept'",
        ),
        (
            [pb.Document(index="kept")],
            grpc.StatusCode.INVALID_ARGUMENT,
            "documents[0].id: is empty; it must name a document of the index",
        ),
    ],
)
async def test_documents_that_cannot_be_looked_up_are_refused(
    stub: Any, documents: list[pb.Document], code: grpc.StatusCode, said: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Rerank(pb.RerankRequest(query=QUERY, documents=documents))
    assert (refused.value.code(), refused.value.details()) == (code, said)


async def test_looking_up_is_bounded_as_searches_are(stub: Any, replica: Replica) -> None:
    request = pb.RerankRequest(query=QUERY, documents=[pb.Document(id="short", index="kept")])
    with replica.indexes.held() as opened:
        opened.first_stages.room.take(FirstStageConfig().max_searches)
        try:
            with pytest.raises(grpc.aio.AioRpcError, match=r"first_stage\.max_searches is 256"):
                await stub.Rerank(request)
        finally:
            opened.first_stages.room.take(-FirstStageConfig().max_searches)
    assert len((await stub.Rerank(request)).results) == 1


async def test_the_readers_of_stores_are_listed_and_shown(stub: Any, replica: Replica) -> None:
    listed = await stub.ListRankers(pb.ListRankersRequest())
    by_name = {each.name: each for each in listed.indexes}
    assert set(by_name["kept"].tokens_for) == set(replica.engine.loaded)
    assert not by_name["plain"].tokens_for
    assert set(by_name["kept"].encodings_for) == {"biencoder", "both/biencoder"}
    assert by_name["encoded"].encodings_for
    assert not by_name["encoded"].tokens_for
    assert list(by_name["fused"].members) == ["plain", "kept"]
    read = replica.metrics.registry.get_sample_value
    labels = {"index": "kept", "ranker": "maxp", "store": "tokens"}
    assert read("farrank_index_store_read", labels) == 1
    assert read("farrank_index_store_read", {**labels, "store": "encodings"}) is None
    assert read("farrank_index_store_read", {**labels, "ranker": "biencoder", "store": "encodings"}) == 1
    assert read("farrank_index_store_read", {**labels, "index": "encoded"}) == 0
    assert (read("farrank_stored_documents_total", {"ranker": "maxp"}) or 0) > 0


def served(ranker: Path, index: Path) -> ServerConfig:
    return ServerConfig(
        rankers={"it": RankerConfig(str(ranker))},
        listen=ListenConfig(port=0, metrics_port=None),
        first_stage=FirstStageConfig(indexes={"kept": Bm25Config(index)}),
    )


@asynccontextmanager
async def limited_to(max_document_tokens: int, ranker: Path, index: Path) -> AsyncIterator[Any]:
    """Serve a ranker that reads that many tokens of a document, over an index."""
    limited = RankerConfig(str(ranker), max_document_tokens=max_document_tokens)
    async with (
        Replica(replace(served(ranker, index), rankers={"it": limited})) as replica,
        grpc.aio.insecure_channel(replica.address) as channel,
    ):
        yield rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]  # generated


@pytest.mark.parametrize(("kept_tokens", "read_tokens"), [(None, 250), (250, 100), (250, 20), (250, 600)])
async def test_a_limit_reads_the_beginnings_of_encodings_or_says_why_not(
    tiny_rankers: dict[str, Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    kept_tokens: int | None,
    read_tokens: int,
) -> None:
    ranker = str(tiny_rankers["biencoder"])
    limited = open_reader(ranker, max_document_tokens=read_tokens)
    window = limited.spec.chunking.window
    store = EncodingsStoreBuilder(ChunkEncoder(ranker, max_document_tokens=kept_tokens))
    index = await asyncio.to_thread(kept_index, tmp_path / "index", TEXTS, [store])
    caplog.set_level(logging.INFO)
    options = pb.RerankOptions(return_chunk_scores=True, count_tokens_cut=True)
    async with limited_to(read_tokens, tiny_rankers["biencoder"], index) as stub:
        answer = await stub.SearchAndRerank(pb.SearchAndRerankRequest(query=QUERY, options=options))
    said = [
        each.message for each in caplog.records if each.message.startswith("index kept: ranker it encodes")
    ]
    reads_kept = window <= read_tokens <= (kept_tokens or read_tokens)
    assert bool(said) != reads_kept
    assert answer.usage.stored_documents == (len(TEXTS) if reads_kept else 0)
    for each in answer.results:
        text = TEXTS[each.id]
        tokens = limited.tokenizer.read(text, 10**6).ids.size
        read = limited.tokenizer.read(text[: each.chunks[-1].end], 10**6).ids.size
        assert read <= read_tokens
        assert each.tokens_cut == tokens - read
        assert each.characters == len(text)
        assert (each.tokens_cut > 0) == (tokens > read_tokens)


@pytest.mark.parametrize(("kept_tokens", "read_tokens"), [(None, 100), (250, 100), (250, 250), (100, 250)])
async def test_a_limit_reads_the_beginnings_of_tokens_or_says_why_not(
    tiny_rankers: dict[str, Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    kept_tokens: int | None,
    read_tokens: int,
) -> None:
    ranker = str(tiny_rankers["maxp"])
    limited = open_reader(ranker, max_document_tokens=read_tokens)
    store = TokenStoreBuilder(limited.tokenizer, kept_tokens)
    index = await asyncio.to_thread(kept_index, tmp_path / "index", TEXTS, [store])
    caplog.set_level(logging.INFO)
    options = pb.RerankOptions(return_chunk_scores=True, count_tokens_cut=True)
    async with limited_to(read_tokens, tiny_rankers["maxp"], index) as stub:
        found = await stub.SearchAndRerank(pb.SearchAndRerankRequest(query=QUERY, options=options))
        brought = [pb.Document(id=each.id, text=TEXTS[each.id]) for each in found.results]
        of_texts = await stub.Rerank(pb.RerankRequest(query=QUERY, documents=brought, options=options))
    reads_kept = read_tokens <= (kept_tokens or read_tokens)
    said = [each.message for each in caplog.records if "ranker it tokenizes its documents" in each.message]
    assert bool(said) != reads_kept
    assert found.usage.stored_documents == (len(TEXTS) if reads_kept else 0)
    by_id = {each.id: each for each in of_texts.results}
    assert any(each.tokens_cut for each in found.results)
    for each in found.results:
        other = by_id[each.id]
        assert each.score == pytest.approx(other.score, abs=1e-4)
        assert (each.tokens_cut, each.characters_cut) == (other.tokens_cut, other.characters_cut)
        assert each.characters == other.characters == len(TEXTS[each.id])
        assert [(chunk.start, chunk.end) for chunk in each.chunks] == [
            (chunk.start, chunk.end) for chunk in other.chunks
        ]


@pytest.mark.parametrize("ranker", ["maxp", "biencoder"])
async def test_the_lengths_of_changed_documents_are_those_of_their_texts(
    tiny_rankers: dict[str, Path], tmp_path: Path, ranker: str
) -> None:
    """Tokens are stored for one ranker, vectors for the other: neither reads a text."""
    source = str(tiny_rankers[ranker])

    def store() -> Store:
        if ranker == "biencoder":
            return EncodingsStoreBuilder(ChunkEncoder(source))
        return TokenStoreBuilder(open_reader(source).tokenizer)

    index = await asyncio.to_thread(kept_index, tmp_path / "index", TEXTS, [store()])
    changes = {"new": "🏔️ A river that is new.", "short": "A river 🏔️ replaced. " * 30}
    added = [IndexDocument(name, text) for name, text in changes.items()]
    await asyncio.to_thread(change_index, index, added, ["odd"], IndexOptions([store()]), replacing=True)

    async with (
        Replica(served(tiny_rankers[ranker], index)) as replica,
        grpc.aio.insecure_channel(replica.address) as channel,
    ):
        stub = rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        found = await stub.SearchAndRerank(pb.SearchAndRerankRequest(query=QUERY))
        named = [pb.Document(id=each.id, index="kept") for each in found.results]
        by_id = await stub.Rerank(pb.RerankRequest(query=QUERY, documents=named))
    texts = {name: text for name, text in {**TEXTS, **changes}.items() if name != "odd"}
    for answer in (found, by_id):
        assert answer.usage.stored_documents == len(texts)
        assert {each.id: each.characters for each in answer.results} == {
            name: len(text) for name, text in texts.items()
        }


async def test_tokens_of_another_tokenizer_are_passed_over(
    tiny_rankers: dict[str, Path],
    kept: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_rankers["maxp"], other)
    (other / "tokenizer_config.json").write_text('{"do_lower_case": false, "pad_token": "[PAD]"}')
    caplog.set_level(logging.INFO)
    async with (
        Replica(served(other, kept)) as replica,
        grpc.aio.insecure_channel(replica.address) as channel,
    ):
        stub = rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        answer = await stub.SearchAndRerank(pb.SearchAndRerankRequest(query=QUERY))
        assert (len(answer.results), answer.usage.stored_documents) == (len(TEXTS), 0)
        (said,) = [each.message for each in caplog.records if "index kept" in each.message]
        assert said.startswith("index kept: ranker it tokenizes its documents: ")
        assert "another tokenizer" in said
        labels = {"index": "kept", "ranker": "it", "store": "tokens"}
        assert replica.metrics.registry.get_sample_value("farrank_index_store_read", labels) == 0


def changed(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)


def foreign(path: Path) -> None:
    _of_index(path, '"id": "', '"id": "f')


def grown(path: Path) -> None:
    """Make the store look as if documents were added after it was written."""
    _of_index(path, f'"places": {len(TEXTS)}', f'"places": {len(TEXTS) + 1}')


def miscounted(path: Path) -> None:
    """Make Lucene's files look as if they belonged to another change."""
    _of_index(path, f'"documents": {len(TEXTS)}', f'"documents": {len(TEXTS) + 1}')


def torn(path: Path) -> None:
    _of_index(path, '"places"', "")


def gone(path: Path) -> None:
    (path.parents[2] / "farrank-index.json").unlink()


def _of_index(path: Path, was: str, becomes: str) -> None:
    index = path.parents[2] / "farrank-index.json"
    said = index.read_text()
    assert was in said
    index.write_text(said.replace(was, becomes, 1))


@pytest.mark.parametrize(
    ("spoil", "name", "said"),
    [
        (changed, "part-000000000000/ids.u16", "its bytes have changed"),
        (Path.unlink, "part-000000000000/ends.i64", "it is missing"),
        (foreign, "tokens.json", "belongs to the index .*, not to f"),
        (grown, "tokens.json", r"goes up to the place \d+, and the index up to \d+"),
        (miscounted, "tokens.json", r"the Lucene index holds \d+ documents, and farrank-index.json says"),
        (torn, "tokens.json", r"farrank-index.json: is damaged \(JSONDecodeError"),
        (gone, "tokens.json", r"farrank-index.json: is missing, but the index has stores"),
    ],
)
async def test_damaged_or_foreign_tokens_refuse_the_start(
    tiny_rankers: dict[str, Path],
    kept: Path,
    tmp_path: Path,
    spoil: Callable[[Path], None],
    name: str,
    said: str,
) -> None:
    index = tmp_path / "index"
    shutil.copytree(kept, index)
    spoil(index / key_of(open_reader(str(tiny_rankers["maxp"])).tokenizer) / name)
    with pytest.raises(ConfigError, match=rf"first_stage\.indexes\.kept\.path: .*{said}"):
        async with Replica(served(tiny_rankers["maxp"], index)):
            pass
