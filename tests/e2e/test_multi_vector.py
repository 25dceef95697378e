"""Multi-vector models are served: long documents whole, with the tokens that decided, in every runtime."""

import math
from collections.abc import AsyncIterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from farrank_client import AsyncClient, InvalidArgument, Ranking, RetryPolicy, ScoreScale
from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.save import save_ranker
from farrank_server.config.schema import DeviceConfig, ListenConfig, RankerConfig, ServerConfig
from farrank_server.replica import Replica
from support.exported_rankers import export_into
from support.multi_vector_models import DOCUMENTS, save_backbone, save_pylate, save_stanford

QUERY = "hello, long document!"
SENTENCE = "the long document ranks chunks of passages by a query and its tokens while windows slide over "
TEXTS = [*DOCUMENTS[:3], SENTENCE * 9]

in_one_loop = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders as published, one of which is packed on a CPU, and an artifact with an export."""
    made = tmp_path_factory.mktemp("multi-vector")
    stanford = save_stanford(save_backbone(made / "bert"), made / "stanford", doc_maxlen=50)
    markers: dict[str, Any] = {"query_prefix": "[Q] ", "document_prefix": "[D] "}
    pylate = save_pylate(
        save_backbone(made / "modernbert", "modernbert"), made / "pylate", document_length=60, **markers
    )
    save_ranker(open_ranker(stanford), made / "artifact")
    export_into(made, {"exported": made / "artifact"}, ["exported"])
    return {"stanford": stanford, "pylate": pylate, "artifact": made / "exported"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(folders: dict[str, Path]) -> AsyncIterator[Replica]:
    stanford, artifact = str(folders["stanford"]), str(folders["artifact"])
    config = ServerConfig(
        rankers={
            "stanford": RankerConfig(stanford),
            "best": RankerConfig(stanford, family="maxp"),
            "pylate": RankerConfig(str(folders["pylate"])),
            "onnx": RankerConfig(artifact, runtime="onnx", precision="fp32"),
            "openvino": RankerConfig(artifact, runtime="openvino", precision="fp32"),
            "other": RankerConfig("embedded"),
        },
        listen=ListenConfig(port=0, metrics_port=None),
        device=DeviceConfig(name="cpu", threads=1),
    )
    async with Replica(config) as replica:
        yield replica


async def ranked(server: Replica, **options: Any) -> Ranking:
    async with AsyncClient(server.address, retry=RetryPolicy(max_attempts=1)) as client:
        return await client.rerank(QUERY, TEXTS, return_chunk_scores=True, **options)


@in_one_loop
@pytest.mark.parametrize("name", ["stanford", "pylate", "onnx", "openvino"])
async def test_every_runtime_reads_whole_documents(
    server: Replica, folders: dict[str, Path], name: str
) -> None:
    expected = open_ranker(folders.get(name, folders["stanford"])).score(QUERY, TEXTS)
    # The second call has its documents from the cache.
    for ranking in (await ranked(server, ranker=name), await ranked(server, ranker=name)):
        found = {result.index: result for result in ranking.results}
        for index, wanted in enumerate(expected):
            assert found[index].score == pytest.approx(wanted.score, abs=1e-5)
            own = [chunk.score for chunk in found[index].chunks]
            assert own == pytest.approx(list(wanted.chunk_scores), abs=1e-5)
            assert found[index].characters_cut == 0
        assert len(found[3].chunks) > 2
        deciding = found[3].deciding_passage
        assert deciding is not None
        assert deciding.score == max(chunk.score for chunk in found[3].chunks)
        assert all(not result.token_matches for result in ranking.results)


@in_one_loop
@pytest.mark.parametrize("name", ["stanford", "onnx", "pylate"])
async def test_tokens_that_decided_have_their_characters(server: Replica, name: str) -> None:
    ranking = await ranked(server, ranker=name, return_token_matches=True, top_n=3)
    assert len(ranking.results) == 3
    again = await ranked(server, ranker=name, return_token_matches=True)
    assert [result.token_matches for result in again.results[:3]] == [
        pytest.approx(result.token_matches) for result in ranking.results
    ]
    for result in again.results:
        text, matches = TEXTS[result.index], result.token_matches
        asked = [QUERY[match.query_start : match.query_end] for match in matches]
        assert "".join(asked).replace(" ", "") == QUERY.replace(" ", "")
        assert sum(match.similarity for match in matches) < result.score
        for match in matches:
            assert -1.0001 < match.similarity <= 1.0001
            assert 0 <= match.start <= match.end <= len(text)
            # Punctuation is read, and not compared.
            assert text[match.start : match.end] not in set(",.!?()")
    found = [{match.start for match in result.token_matches if match.end} for result in again.results]
    assert max(map(len, found)) > 1


@in_one_loop
async def test_a_document_of_several_pieces_has_matches(server: Replica) -> None:
    """Its text is read again in steps, after the call has its scores."""
    text = SENTENCE * 500
    async with AsyncClient(server.address, retry=RetryPolicy(max_attempts=1)) as client:
        ranking = await client.rerank(QUERY, [text], ranker="stanford", return_token_matches=True)
    (result,) = ranking.results
    found = {text[match.start : match.end] for match in result.token_matches if match.end}
    assert found
    assert found <= set(SENTENCE.split())


@in_one_loop
async def test_only_the_deciding_window_has_matches_if_the_best_counts(server: Replica) -> None:
    ranking = await ranked(server, ranker="best", return_token_matches=True)
    (result,) = [each for each in ranking.results if each.index == 3]
    passage = result.deciding_passage
    assert passage is not None
    spans = [(match.start, match.end) for match in result.token_matches if match.end]
    assert spans
    assert all(passage.start <= start and end <= passage.end for start, end in spans)


@in_one_loop
async def test_other_rankers_refuse_matches(server: Replica) -> None:
    with pytest.raises(InvalidArgument, match=r"options\.return_token_matches: ranker other has none"):
        await ranked(server, ranker="other", return_token_matches=True)


@in_one_loop
@pytest.mark.skipif(
    int(version("sentence-transformers").partition(".")[0]) < 6, reason="needs sentence-transformers 6"
)
async def test_short_documents_have_the_librarys_scores(server: Replica, folders: dict[str, Path]) -> None:
    from sentence_transformers import MultiVectorEncoder

    for name in ("stanford", "pylate"):
        model = MultiVectorEncoder(str(folders[name]), device="cpu")
        asked, vectors = model.encode_query([QUERY]), model.encode_document(TEXTS[:3])
        wanted = model.similarity(asked, vectors)[0].tolist()
        found = {result.index: result.score for result in (await ranked(server, ranker=name)).results}
        assert [found[index] for index in range(3)] == pytest.approx(wanted, abs=1e-5)


@in_one_loop
async def test_scores_between_0_and_1_do_not_depend_on_the_querys_length(server: Replica) -> None:
    """PyLate's 32 vectors have sums of up to 32, whose sigmoid would be 1 for every document."""
    raw, scaled = [
        {
            result.index: result
            for result in (await ranked(server, ranker="pylate", score_scale=scale)).results
        }
        for scale in (ScoreScale.RAW, ScoreScale.SIGMOID)
    ]
    for index, result in raw.items():
        found, cosine = scaled[index], result.score / 32
        assert found.score == pytest.approx(1 / (1 + math.exp(5 - 12 * cosine)), abs=1e-5)
        first = result.chunks[0].score / 32
        assert found.chunks[0].score == pytest.approx(1 / (1 + math.exp(5 - 12 * first)), abs=1e-5)
