"""A Hugging Face folder of a generative language model is served as it is, and exported."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio

from farrank_client import AsyncClient, Document, Ranking, RetryPolicy
from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.save import save_ranker
from farrank_server.config.schema import DeviceConfig, ListenConfig, RankerConfig, ServerConfig
from farrank_server.replica import Replica
from support.exported_rankers import export_into
from support.language_models import make_language_model

QUERY = "what ranks a long document?"
INSTRUCTION = "Find the document that ranks."
TEXT = "windows slide over text and passages of the long document score by a query, hello world. "
ANSWER = "A search engine ranks them."
DOCUMENTS = [TEXT * before + ANSWER + TEXT * behind for before, behind in ((0, 0), (3, 9), (12, 1), (0, 20))]

in_one_loop = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Folders as published, and an artifact with an export."""
    made = tmp_path_factory.mktemp("yes-no")
    folders = {name: make_language_model(made / name, name) for name in ("qwen3", "gemma")}
    save_ranker(open_ranker(folders["qwen3"], window=40, stride=30), made / "artifact")
    export_into(made, {"windows": made / "artifact"}, ["windows"])
    return {**folders, "artifact": made / "windows"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(folders: Mapping[str, Path]) -> AsyncIterator[Replica]:
    qwen3, artifact = str(folders["qwen3"]), str(folders["artifact"])
    config = ServerConfig(
        rankers={
            "windows": RankerConfig(qwen3, window=40, stride=30),
            "whole": RankerConfig(qwen3, family="longp", max_document_tokens=800),
            "instructed": RankerConfig(qwen3, window=40, stride=30, instruction=INSTRUCTION),
            "packed": RankerConfig(qwen3, window=40, stride=30, packing="packed"),
            "onnx": RankerConfig(artifact, runtime="onnx", precision="fp32"),
            "openvino": RankerConfig(artifact, runtime="openvino", precision="fp32"),
            "gemma": RankerConfig(str(folders["gemma"]), window=40, stride=30),
        },
        listen=ListenConfig(port=0, metrics_port=None),
        device=DeviceConfig(name="cpu", threads=1),
    )
    async with Replica(config) as replica:
        yield replica


async def answered(server: Replica, ranker: str) -> Ranking:
    documents = [Document(str(index), text) for index, text in enumerate(DOCUMENTS)]
    async with AsyncClient(server.address, retry=RetryPolicy(max_attempts=1)) as client:
        return await client.rerank(QUERY, documents, ranker=ranker, depth="all", return_chunk_scores=True)


@in_one_loop
@pytest.mark.parametrize(
    ("name", "instruction"),
    [
        ("windows", None),
        ("whole", None),
        ("instructed", INSTRUCTION),
        ("packed", None),
        ("onnx", None),
        ("openvino", None),
        ("gemma", None),
    ],
)
async def test_a_served_score_and_its_passage_are_the_rankers(
    server: Replica, folders: Mapping[str, Path], name: str, instruction: str | None
) -> None:
    folder = folders["gemma" if name == "gemma" else "qwen3"]
    ranker = open_ranker(folder, window=40, stride=30, instruction=instruction)
    if name == "whole":
        ranker = open_ranker(folder, family="longp", max_document_tokens=800)
    expected = ranker.score(QUERY, DOCUMENTS)
    assert len({round(each.score, 3) for each in expected}) > 1
    answer = await answered(server, name)
    for result in answer.results:
        own = expected[result.index]
        assert result.score == pytest.approx(own.score, abs=1e-5)
        assert [each.score for each in result.chunks] == pytest.approx(own.chunk_scores, abs=1e-5)
        assert not result.tokens_cut
        text = DOCUMENTS[result.index]
        spans = [(each.start, each.end) for each in result.chunks]
        assert spans == [(each.start, each.end) for each in own.chunks]
        assert spans[0][0] == 0
        assert spans[-1][1] == len(text)
        deciding = own.chunks[own.deciding]
        passage = result.deciding_passage
        assert passage is not None
        assert (passage.start, passage.end) == (deciding.start, deciding.end)
        # The span is the text that the model read there.
        tokens = ranker.reader.tokenizer.tokenizer
        read = tokens.decode(deciding.ids.tolist(), skip_special_tokens=False)  # bytes count as such
        assert read.removeprefix(" ") == text[deciding.start : deciding.end].removeprefix(" ")


@in_one_loop
async def test_an_instruction_changes_scores_and_version(server: Replica) -> None:
    plain, told = await answered(server, "windows"), await answered(server, "instructed")
    assert plain.ranker.version != told.ranker.version
    assert [each.score for each in plain.results] != [each.score for each in told.results]
