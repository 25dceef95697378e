"""A replica on published graphs: found next to a configuration without weights, with the weights' answers."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from farrank_cli.main import main
from farrank_client import AsyncClient, RetryPolicy
from farrank_rankers.files.open import open_ranker
from farrank_server.config.schema import DeviceConfig, ListenConfig, RankerConfig, ServerConfig
from farrank_server.replica import Replica
from support import published_exports as made

QUERY = "search query"
DOCUMENTS = [f"the long document ranks chunks {'of passages by a query ' * n}" for n in (0, 1, 30, 120)]
ONCE = RetryPolicy(max_attempts=1)

in_one_loop = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A cross-encoder and a bi-encoder with graphs. The weights for comparison are in another folder."""
    folder = tmp_path_factory.mktemp("published")
    for name in ("cross-encoder", "biencoder"):
        (folder / name).mkdir()
    graph = made.write_onnx(
        made.save_cross_encoder(folder / "cross-encoder"), folder / "cross-encoder" / "onnx" / "model.onnx"
    )
    made.write_openvino(graph, folder / "cross-encoder" / "openvino")
    made.quantized(graph, "model_quantized.onnx")
    made.write_onnx(
        made.save_biencoder(folder / "biencoder"),
        folder / "biencoder" / "onnx" / "model.onnx",
        "last_hidden_state",
    )
    models = {}
    for name in ("cross-encoder", "biencoder"):
        models[f"{name} whole"] = folder / name
        models[name] = Path(
            shutil.copytree(folder / name, folder / "served" / name, ignore=lambda *_: ["model.safetensors"])
        )
    return models


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(models: dict[str, Path]) -> AsyncIterator[Replica]:
    cross, dual = str(models["cross-encoder"]), str(models["biencoder"])
    config = ServerConfig(
        rankers={
            "cross-encoder": RankerConfig(cross, window=40, stride=30),
            "biencoder": RankerConfig(dual, runtime="onnx", family="sump", window=40, stride=30),
            "named": RankerConfig(cross, export_file="onnx/model_quantized.onnx"),
        },
        listen=ListenConfig(port=0, metrics_port=None),
        device=DeviceConfig(name="cpu", threads=1),
    )
    async with Replica(config) as replica:
        yield replica


@in_one_loop
@pytest.mark.parametrize(("name", "family"), [("cross-encoder", "maxp"), ("biencoder", "sump")])
async def test_a_published_graph_answers_as_its_weights(
    server: Replica, models: dict[str, Path], name: str, family: str
) -> None:
    ranker = open_ranker(models[f"{name} whole"], family=family, window=40, stride=30)
    wanted = ranker.score(QUERY, DOCUMENTS)
    async with AsyncClient(server.address, retry=ONCE) as client:
        answer = await client.rerank(QUERY, DOCUMENTS, ranker=name, depth="all", return_chunk_scores=True)
    assert max(len(each.chunks) for each in answer.results) > 2
    for result in answer.results:
        own = wanted[result.index]
        assert result.score == pytest.approx(own.score, abs=2e-5)
        assert [each.score for each in result.chunks] == pytest.approx(own.chunk_scores, abs=1e-5)


@in_one_loop
async def test_the_catalog_says_which_graph_serves_and_that_its_parity_is_unknown(
    server: Replica, capsys: pytest.CaptureFixture[str]
) -> None:
    async with AsyncClient(server.address, retry=ONCE) as client:
        rankers = {each.name: each for each in (await client.rankers()).rankers}
    cross, named = rankers["cross-encoder"], rankers["named"]
    assert (cross.runtime, cross.precision, cross.parity) == ("openvino", "fp32", None)
    assert cross.runtime_reason == (
        "openvino with openvino/openvino_model.xml, the fastest that can serve this ranker here; "
        "parity unknown: it was not compared with the weights"
    )
    assert (named.runtime, named.precision) == ("onnx", "int8")
    assert "onnx with onnx/model_quantized.onnx, as configured" in named.runtime_reason
    assert named.version != cross.version
    assert "onnx with onnx/model.onnx" in rankers["biencoder"].runtime_reason


def start(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the output of a start that ends with status 2."""
    assert main(["serve", "--port=0", "--metrics-port=none", "--device=cpu", *arguments]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("checks_alone", [(), ("--dry-run",)])
def test_a_file_that_is_not_there_stops_the_start(
    models: dict[str, Path], capsys: pytest.CaptureFixture[str], checks_alone: tuple[str, ...]
) -> None:
    folder = models["cross-encoder"]
    said = start(
        capsys,
        f"--ranker=mine={folder}",
        "--set=rankers.mine.export_file=onnx/model_O3.onnx",
        *checks_alone,
    )
    assert f"rankers.mine: {folder}/onnx/model_O3.onnx is missing" in said
    assert "published graphs there: " in said
    assert "onnx/model.onnx" in said
