"""A closed runtime has no weights, even if it is still referenced."""

import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from farrank_rankers.files.open import open_ranker
from farrank_rankers.packed.plain_attention import plain_attention
from farrank_runtimes import onnx_runtime, openvino_runtime
from farrank_runtimes.exported_runtime import ExportedRuntime
from farrank_runtimes.graph_files import GraphFiles
from farrank_runtimes.runtime import Placement, Runtime
from farrank_runtimes.torch_runtime import TorchRuntime
from support.runtime_scores import scores_through

CPU = Placement("cpu", 2)


def padded(artifact: Path) -> tuple[Runtime, "weakref.ref[Any]"]:
    ranker = open_ranker(artifact)
    weights = weakref.ref(next(ranker.encoder.parameters()))
    return TorchRuntime(ranker, "fp32", "cpu", 1), weights


def packed(artifact: Path) -> tuple[Runtime, "weakref.ref[Any]"]:
    ranker = open_ranker(artifact)
    weights = weakref.ref(next(ranker.encoder.parameters()))
    return TorchRuntime(ranker, "fp32", "cpu", 1, plain_attention), weights


def exported(
    artifact: Path, open_graphs: Callable[[GraphFiles, Placement], ExportedRuntime]
) -> tuple[Runtime, "weakref.ref[Any]"]:
    folder = artifact / "exports" / "onnx-fp32"
    runtime = open_graphs(GraphFiles(folder / "encoder.onnx", folder / "aggregator.onnx", "fp32", 64), CPU)
    run: Any = runtime._encode.args[0]  # type: ignore[attr-defined]
    return runtime, weakref.ref(run.args[0] if isinstance(run, partial) else run.__self__)


@pytest.mark.parametrize(
    "opened",
    [
        pytest.param(padded, id="torch, padded"),
        pytest.param(packed, id="torch, packed"),
        pytest.param(lambda artifact: exported(artifact, onnx_runtime.open_graphs), id="onnx"),
        pytest.param(lambda artifact: exported(artifact, openvino_runtime.open_graphs), id="openvino"),
    ],
)
def test_a_closed_runtime_lets_go_of_its_weights(
    tiny_exports: dict[str, Path],
    opened: Callable[[Path], tuple[Runtime, "weakref.ref[Any]"]],
) -> None:
    runtime, weights = opened(tiny_exports["maxp"])
    ranker = open_ranker(tiny_exports["maxp"])
    assert scores_through(runtime, ranker.reader)
    before = runtime.capabilities()
    assert weights() is not None
    runtime.close()
    assert weights() is None
    assert runtime.capabilities() == before
    runtime.close()
    with pytest.raises(RuntimeError, match="this runtime is closed"):
        scores_through(runtime, ranker.reader)
