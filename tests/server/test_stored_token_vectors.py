"""Documents with stored token vectors, over a real socket: their texts' answers, within the codec's error."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_args

import grpc
import pytest
import pytest_asyncio

from farrank.v1 import rerank_pb2 as pb
from farrank.v1 import rerank_pb2_grpc
from farrank_first_stage.bm25 import Bm25Config
from farrank_first_stage.config import FirstStageConfig
from farrank_indexes.chunk_encoder import TokenVectorEncoder
from farrank_indexes.document import IndexDocument
from farrank_indexes.index_builder import IndexOptions, Store, change_index
from farrank_indexes.token_store import TokenStoreBuilder
from farrank_indexes.token_vector_store import TokenVectorsBuilder
from farrank_rankers.files.open import open_reader
from farrank_runtimes.runtime import CodecName
from farrank_server.config.schema import LimitsConfig, ListenConfig, RankerConfig, ServerConfig
from farrank_server.replica import Replica
from support.kept_index import copy_with, kept_index

QUERY = "where does the river rise"
TEXTS = {
    "long": "The river rises in the mountains, far from the sea. " * 60,
    "short": "A river.",
    "odd": "Le fleuve\r\n\r\n  naît 🏔️🏔️ ici:   the river   rises — naïve café, Ünïcödé.\t" * 9,
    "other": "The sea is where a river ends, and bread is baked of flour. " * 20,
}
ADDED = {"added": "Another river rises in the hills and ends in the sea. " * 30}
ALL = TEXTS | ADDED
CODECS: tuple[CodecName, ...] = get_args(CodecName)
# The largest change of a score of 12 query vectors of length 1 with 8 dimensions.
WITHIN: dict[CodecName, float] = {"fp16": 0.005, "int8": 0.12, "int4": 1.5}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def indexes(tiny_rankers: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An index with each codec, to which a document was added and from which one was deleted."""
    source = str(tiny_rankers["maxsim"])
    folder = tmp_path_factory.mktemp("token-vectors")
    made: dict[str, Path] = {}
    for codec in CODECS:

        def stores(codec: CodecName = codec) -> list[Store]:
            tokens = TokenStoreBuilder(open_reader(source).tokenizer)
            return [tokens, TokenVectorsBuilder(TokenVectorEncoder(source), codec)]

        made[codec] = kept_index(folder / codec, {**TEXTS, "deleted": "A river that was."}, stores())
        added = [IndexDocument(*each) for each in ADDED.items()]
        change_index(made[codec], added, ["deleted"], IndexOptions(stores()))
    made["alone"] = copy_with(made["int8"], folder / "alone", "token-vectors")
    made["texts"] = copy_with(made["fp16"], folder / "texts", "token-vectors", "texts")
    made["plain"] = copy_with(made["int8"], folder / "plain")
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(tiny_rankers: dict[str, Path], indexes: dict[str, Path]) -> AsyncIterator[Replica]:
    config = ServerConfig(
        rankers={name: RankerConfig(str(tiny_rankers[name])) for name in ("maxsim", "maxp")},
        listen=ListenConfig(port=0, metrics_port=None),
        limits=LimitsConfig(max_documents=50),
        first_stage=FirstStageConfig(indexes={name: Bm25Config(path) for name, path in indexes.items()}),
    )
    async with Replica(config) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stub(replica: Replica) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(replica.address) as channel:
        yield rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]  # generated


def by_id(answer: Any) -> dict[str, Any]:
    return {each.id: each for each in answer.results}


def assert_same(one: Any, other: Any, within: float) -> None:
    assert by_id(one).keys() == by_id(other).keys()
    for name, each in by_id(one).items():
        expected = by_id(other)[name]
        assert each.score == pytest.approx(expected.score, abs=within)
        assert [(chunk.start, chunk.end) for chunk in each.chunks] == [
            (chunk.start, chunk.end) for chunk in expected.chunks
        ]
        of_chunks, of_texts = ([chunk.score for chunk in its.chunks] for its in (each, expected))
        assert of_chunks == pytest.approx(of_texts, abs=within)
        assert (each.tokens_cut, each.characters_cut) == (expected.tokens_cut, expected.characters_cut)


async def searched(stub: Any, index: str, **options: Any) -> Any:
    asked = pb.RerankOptions(ranker="maxsim", return_chunk_scores=True, count_tokens_cut=True, **options)
    return await stub.SearchAndRerank(pb.SearchAndRerankRequest(query=QUERY, index=index, options=asked))


@pytest.mark.parametrize("codec", CODECS)
async def test_a_search_reads_them_instead_of_texts(stub: Any, codec: CodecName) -> None:
    stored, plain = [await searched(stub, index) for index in (codec, "plain")]
    assert stored.usage.stored_documents == len(stored.results) == len(ALL)
    assert stored.usage.pairs == 1  # the query's
    assert plain.usage.stored_documents == 0
    assert_same(stored, plain, WITHIN[codec])
    if codec != "int4":
        assert [each.id for each in stored.results] == [each.id for each in plain.results]


@pytest.mark.parametrize("codec", CODECS)
async def test_documents_by_id_are_ranked_as_if_they_were_brought(stub: Any, codec: CodecName) -> None:
    options = pb.RerankOptions(ranker="maxsim", return_chunk_scores=True, count_tokens_cut=True)
    own = pb.Document(id="own", text="my own river")
    named = [*(pb.Document(id=doc_id, index=codec) for doc_id in ALL), own]
    brought = [*(pb.Document(id=doc_id, text=text) for doc_id, text in ALL.items()), own]
    one, other = [
        await stub.Rerank(pb.RerankRequest(query=QUERY, documents=documents, options=options))
        for documents in (named, brought)
    ]
    assert one.usage.stored_documents == len(ALL)
    assert_same(one, other, WITHIN[codec])


async def test_max_chunks_reads_the_first_windows_and_tokens_tell_the_rest(stub: Any) -> None:
    for chunks in (1, 2):
        stored, plain, alone = [
            await searched(stub, index, max_chunks=chunks) for index in ("int8", "plain", "alone")
        ]
        assert stored.usage.stored_documents == len(ALL)
        assert_same(stored, plain, WITHIN["int8"])
        # Without tokens nothing tells how much max_chunks cuts.
        assert alone.usage.stored_documents == 0
        assert_same(alone, plain, 1e-4)


async def test_their_readers_are_listed(stub: Any) -> None:
    listed = {each.name: each for each in (await stub.ListRankers(pb.ListRankersRequest())).indexes}
    for name in (*CODECS, "alone", "texts"):
        assert list(listed[name].encodings_for) == ["maxsim"]
    assert not listed["plain"].encodings_for


async def test_tokens_that_decided_are_found_in_stored_vectors(stub: Any) -> None:
    stored, plain, texts, alone = [
        by_id(await searched(stub, index, return_token_matches=True))
        for index in ("fp16", "plain", "texts", "alone")
    ]
    equal = total = 0
    for name, expected in plain.items():
        assert len(expected.token_matches) == 5
        for one, other in zip(stored[name].token_matches, expected.token_matches, strict=True):
            assert (one.query_start, one.query_end) == (other.query_start, other.query_end)
            assert one.similarity == pytest.approx(other.similarity, abs=1e-3)
            equal += (one.start, one.end) == (other.start, other.end)
            total += 1
        # `farrank index --encode` keeps texts, but no tokens.
        assert texts[name].token_matches == stored[name].token_matches
        # Neither its text nor its tokens are at hand.
        assert not alone[name].token_matches
    # Repeated sentences have tokens of almost the same similarity, of which rounding may choose another.
    assert equal >= 0.7 * total
