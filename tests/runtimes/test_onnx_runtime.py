"""ONNX Runtime on traced graphs: the ranker's own scores in any shape, and the errors when it is absent."""

import random
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import onnx
import pytest
import torch
from onnx import TensorProto, helper

from farrank_rankers.features import stacked
from farrank_rankers.files.open import open_ranker
from farrank_runtimes.exported_runtime import ExportedRuntime
from farrank_runtimes.graph_files import GraphFiles
from farrank_runtimes.onnx_runtime import (
    INSTALL,
    NAMES,
    OnnxGraph,
    Provider,
    check_provider,
    open_graphs,
    open_session,
)
from farrank_runtimes.runtime import OutOfMemory, Placement, RuntimeAbsent

QUERY = "where does the river rise"
TEXTS = [f"the river rises in the mountains {'and goes on ' * n}" for n in (0, 1, 7, 90, 200)]
PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BUILT_WITH = list(NAMES.values())


def opened(artifact: Path) -> ExportedRuntime:
    folder = artifact / "exports" / "onnx-fp32"
    longest = open_ranker(artifact).reader.max_input_tokens
    files = GraphFiles(folder / "encoder.onnx", folder / "aggregator.onnx", "fp32", longest)
    return open_graphs(files, Placement("cpu", 1))


@pytest.mark.parametrize(
    "family", ["maxp", "biencoder", "parade-transf-pretr-q", "parade-transf-pretr-lateir"]
)
def test_scores_and_evidence_are_the_rankers_own(tiny_exports: dict[str, Path], family: str) -> None:
    """All documents are in one batch, whatever their number of chunks, as in a server."""
    ranker = open_ranker(tiny_exports[family])
    wanted = ranker.score(QUERY, TEXTS)
    runtime, reader = opened(tiny_exports[family]), ranker.reader
    query = reader.read_query(QUERY)
    dual = ranker.spec.plan == "dual"

    documents = []
    for text in TEXTS:
        chunks = reader.split(reader.read_document(text))
        inputs = [reader.chunk_input(None if dual else query, chunk) for chunk in chunks]
        rows = [row for each in inputs for row in runtime.encode([each]).rows()]
        documents.append(stacked(rows))
    queries = runtime.encode([reader.query_input(query)]).rows() * len(TEXTS) if dual else None
    found = runtime.score(documents, queries)

    assert found.scores == pytest.approx([each.score for each in wanted], abs=1e-5)
    for chunk_scores, each in zip(found.chunk_scores, wanted, strict=True):
        assert chunk_scores == pytest.approx(each.chunk_scores, abs=1e-5)


def test_padding_and_companions_change_nothing(tiny_exports: dict[str, Path]) -> None:
    runtime, reader = opened(tiny_exports["maxp"]), open_ranker(tiny_exports["maxp"]).reader
    query = reader.read_query(QUERY)
    inputs = [
        reader.chunk_input(query, chunk)
        for text in TEXTS
        for chunk in reader.split(reader.read_document(text))
    ]
    for row, each in zip(runtime.encode(inputs).rows(), inputs, strict=True):
        assert torch.allclose(row.vectors, runtime.encode([each]).rows()[0].vectors, atol=1e-5)


def test_returned_features_are_not_overwritten(tiny_exports: dict[str, Path]) -> None:
    """Features wait for their document's other chunks while the session goes on."""
    runtime, reader = opened(tiny_exports["maxp"]), open_ranker(tiny_exports["maxp"]).reader
    drawn = random.Random(3)
    kept = []
    for _ in range(40):
        words = " ".join(drawn.choices(TEXTS[2].split(), k=drawn.randint(1, 60)))
        chunk = reader.split(reader.read_document(words))[0]
        vectors = runtime.encode([reader.chunk_input(reader.read_query(QUERY), chunk)]).rows()[0].vectors
        kept.append((vectors, vectors.clone()))
    assert all(torch.equal(vectors, copy) for vectors, copy in kept)


def test_warming_up_measures_a_speed_and_says_what_runs(tiny_exports: dict[str, Path]) -> None:
    runtime = opened(tiny_exports["maxp"])
    assert runtime.warm_up() > 0
    runs = runtime.capabilities()
    assert (runs.runtime, runs.device, runs.precision) == ("onnx", "cpu", "fp32")


@pytest.fixture
def expanding(tmp_path: Path) -> OnnxGraph:
    """Make a graph whose output has the shape that its input states."""
    node = helper.make_node("Expand", ["value", "shape"], ["out"])
    graph = helper.make_graph(
        [node],
        "expanding",
        [
            helper.make_tensor_value_info("value", TensorProto.FLOAT, [1]),
            helper.make_tensor_value_info("shape", TensorProto.INT64, [1]),
        ],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["any"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, tmp_path / "expanding.onnx")
    session = open_session(tmp_path / "expanding.onnx", {"cpu": {}}, threads=1)
    return OnnxGraph(session, torch.device("cpu"))


def test_real_exhaustion_of_host_memory_is_reported(expanding: OnnxGraph) -> None:
    with pytest.raises(OutOfMemory):
        expanding.run({"value": torch.ones(1), "shape": torch.tensor([2**50])})
    (out,) = expanding.run({"value": torch.ones(1), "shape": torch.tensor([3])})
    assert out.tolist() == [1, 1, 1]


def test_the_models_own_failures_stay_what_they_are(expanding: OnnxGraph) -> None:
    with pytest.raises(RuntimeError, match="Expand"):
        expanding.run({"value": torch.ones(1), "shape": torch.tensor([-7])})


def test_a_provider_that_is_absent_is_never_replaced(tiny_exports: dict[str, Path]) -> None:
    graph = tiny_exports["maxp"] / "exports" / "onnx-fp32" / "encoder.onnx"
    with pytest.raises(RuntimeAbsent, match="pip install"):
        open_session(graph, {"cuda": {"device_id": "0"}}, threads=1)


@pytest.mark.parametrize("provider", ["cuda", "tensorrt"])
def test_a_provider_that_is_not_built_in_names_the_command(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(RuntimeAbsent) as refused:
        check_provider(provider)
    assert str(refused.value) == (
        f"the installed ONNX Runtime has no {NAMES[provider]}, only CPUExecutionProvider; {INSTALL[provider]}"
    )


def test_without_onnx_runtime_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(
        RuntimeAbsent, match=r"^ONNX Runtime is not installed; pip install 'farrank\[onnx\]'$"
    ):
        check_provider("cpu")


def test_the_cpu_provider_is_here() -> None:
    check_provider("cpu")


@pytest.mark.parametrize("provider", ["cuda", "tensorrt"])
def test_a_provider_whose_libraries_are_not_found_is_not_replaced_by_the_cpu(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime still opens such a session, with the remaining providers."""
    seen: list[dict[str, object]] = []

    class Session:
        def __init__(self, graph: str, options: object, **given: object) -> None:
            seen.append(given)

        def disable_fallback(self) -> None:
            pass

        def get_providers(self) -> list[str]:
            return ["CPUExecutionProvider"]

    class Options(SimpleNamespace):
        def add_session_config_entry(self, key: str, value: str) -> None:
            pass

    library = ModuleType("onnxruntime")
    vars(library).update(
        get_available_providers=lambda: BUILT_WITH,
        preload_dlls=lambda: None,
        InferenceSession=Session,
        SessionOptions=Options,
    )
    monkeypatch.setitem(sys.modules, "onnxruntime", library)
    with pytest.raises(RuntimeAbsent, match="libraries could not be loaded"):
        open_session(Path("graph.onnx"), {provider: {"device_id": "0"}}, threads=1)
    assert seen[0]["enable_fallback"] == 0
    assert seen[0]["providers"] == [(NAMES[provider], {"device_id": "0"})]


def test_the_extras_that_are_named_exist() -> None:
    for command in INSTALL.values():
        extra = command.rpartition("farrank[")[2].rstrip("]'")
        assert extra in PROJECT["optional-dependencies"]
