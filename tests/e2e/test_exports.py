"""A replica on exported rankers: the same scores, the exports' origin, and the errors that stop the start."""

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

QUERY = "where does the river rise"
DOCUMENTS = [f"the river rises in the mountains {'and goes on ' * n}" for n in (0, 1, 30, 200, 400)]
FAMILIES = ("maxp", "biencoder", "parade-transf-pretr-q", "parade-transf-pretr-lateir")
ONCE = RetryPolicy(max_attempts=1)


in_one_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tiny_exports: dict[str, Path]) -> AsyncIterator[Replica]:
    config = ServerConfig(
        rankers={name: RankerConfig(str(path)) for name, path in tiny_exports.items()}
        | {
            "maxp": RankerConfig(str(tiny_exports["maxp"]), runtime="onnx"),
            "plain": RankerConfig(str(tiny_exports["maxp"]), runtime="torch"),
        },
        listen=ListenConfig(port=0, metrics_port=None),
        # By default the device could be a GPU, where these exports cannot run.
        device=DeviceConfig(name="cpu", threads=1),
    )
    async with Replica(config) as replica:
        yield replica


@in_one_loop
@pytest.mark.parametrize("family", FAMILIES)
async def test_an_exported_ranker_answers_as_its_ranker(
    server: Replica, tiny_exports: dict[str, Path], family: str
) -> None:
    wanted = open_ranker(tiny_exports[family]).score(QUERY, DOCUMENTS)
    async with AsyncClient(server.address, retry=ONCE) as client:
        answer = await client.rerank(QUERY, DOCUMENTS, ranker=family, depth="all", return_chunk_scores=True)
    for result in answer.results:
        own = wanted[result.index]
        assert result.score == pytest.approx(own.score, abs=1e-5)
        assert [each.score for each in result.chunks] == pytest.approx(own.chunk_scores, abs=1e-5)


@in_one_loop
async def test_the_catalog_says_who_serves_and_why(server: Replica) -> None:
    async with AsyncClient(server.address, retry=ONCE) as client:
        rankers = {each.name: each for each in (await client.rankers()).rankers}
    assert rankers["maxp"].runtime == "onnx"
    assert rankers["maxp"].runtime_reason == "onnx with onnx-fp32, as configured"
    assert rankers["maxp"].parity is not None
    assert rankers["maxp"].parity.max_difference == 3e-7
    assert (rankers["plain"].runtime, rankers["plain"].parity) == ("torch", None)
    assert rankers["plain"].version == rankers["maxp"].version
    assert rankers["biencoder"].runtime in ("onnx", "openvino")
    assert "the fastest that can serve this ranker here" in rankers["biencoder"].runtime_reason


def start(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the output of a start that ends with status 2."""
    assert main(["serve", "--port=0", "--metrics-port=none", *arguments]) == 2
    return capsys.readouterr().err


def test_a_damaged_export_stops_the_start(
    tiny_exports: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = Path(shutil.copytree(tiny_exports["maxp"], tmp_path / "maxp"))
    graph = artifact / "exports" / "onnx-fp32" / "encoder.onnx"
    graph.write_bytes(graph.read_bytes() + b"\0")
    said = start(capsys, f"--ranker=mine={artifact}", "--device=cpu")
    assert f"farrank serve: rankers.mine: {graph} is damaged" in said


def test_a_stale_export_stops_the_start(
    tiny_exports: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = Path(shutil.copytree(tiny_exports["maxp"], tmp_path / "maxp"))
    spec = artifact / "ranker.json"
    spec.write_text(spec.read_text().replace('"maxp"', '"sump"'))
    said = start(capsys, f"--ranker=mine={artifact}", "--device=cpu")
    assert f"is stale: {spec} changed since; farrank export {artifact}" in said


def test_a_provider_that_is_absent_stops_the_start(
    tiny_exports: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    said = start(capsys, f"--ranker=mine={tiny_exports['maxp']}", "--runtime=tensorrt")
    assert "farrank serve: rankers.mine.runtime: the installed ONNX Runtime has no Tensorrt" in said
    assert "pip install 'farrank[tensorrt]'" in said


async def test_rankers_are_exported_at_the_first_start_and_kept_for_the_next(
    tiny_rankers: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FARRANK_CACHE", str(tmp_path))
    given: list[ServerConfig] = []

    def serve(config: ServerConfig, pid_file: Path | None, reread: object, look: object) -> int:
        given.append(config)
        return 0

    monkeypatch.setattr("farrank_server.run.run", serve)
    maxp = tiny_rankers["maxp"]
    flags = ["serve", "--device", "cpu", "--threads", "1", "--port", "0", "--metrics-port", "none"]
    flags += ["--ranker", f"short={maxp}", "--ranker", f"plain={maxp}", "--export", "auto"]
    flags += ["--set", "rankers.short.max_query_tokens=3", "--set", "rankers.short.precision=fp32"]
    flags += ["--set", "rankers.plain.runtime=torch"]
    assert main(flags) == 0
    assert "openvino in fp32: tracing the encoder" in capsys.readouterr().err
    [artifact] = [path for path in (tmp_path / "exports").iterdir() if path.is_dir()]
    assert main(flags) == 0
    assert capsys.readouterr().err == ""
    first, second = given
    assert first == second
    assert first.rankers["short"] == RankerConfig(str(artifact), precision="fp32")
    assert first.rankers["plain"].source == str(maxp)

    wanted = open_ranker(maxp, max_query_tokens=3)
    scores = [each.score for each in wanted.score(QUERY, DOCUMENTS)]
    async with Replica(second) as replica, AsyncClient(replica.address, retry=ONCE) as client:
        answer = await client.rerank(QUERY, DOCUMENTS, ranker="short", depth="all")
        [served] = [each for each in (await client.rankers()).rankers if each.name == "short"]
    assert (served.runtime, served.version) == ("openvino", wanted.version)
    for result in answer.results:
        assert result.score == pytest.approx(scores[result.index], abs=1e-5)
