import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from farrank_rankers.features import stacked
from farrank_rankers.files.open import open_ranker
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes import openvino_runtime
from farrank_runtimes.exported_runtime import ExportedRuntime
from farrank_runtimes.graph_files import GraphFiles
from farrank_runtimes.loaded_runtime import even_batch
from farrank_runtimes.openvino_runtime import (
    GraphRequest,
    OpenVinoGraph,
    TwoStreams,
    computes_bf16,
    open_graphs,
)
from farrank_runtimes.runtime import (
    DeviceAbsent,
    DeviceLost,
    Placement,
    PrecisionAbsent,
    RuntimeAbsent,
)

QUERY = "where does the river rise"
TEXTS = [f"the river rises in the mountains {'and goes on ' * n}" for n in range(0, 100, 19)]
FAMILIES = ("maxp", "biencoder")
INPUTS = ("input_ids", "roles", "token_type_ids")

needs_bf16 = pytest.mark.skipif(not computes_bf16(), reason="the processor does not compute in bf16")


@pytest.fixture
def graphs(tiny_exports: dict[str, Path]) -> dict[str, Path]:
    """Folders of traced rankers."""
    return {family: tiny_exports[family] / "exports" / "onnx-fp32" for family in FAMILIES}


def opened(folder: Path, **changes: Any) -> ExportedRuntime:
    precision = changes.pop("precision", "fp32")
    files = GraphFiles(folder / "encoder.onnx", folder / "aggregator.onnx", precision, longest_input=64)
    return open_graphs(files, Placement(**({"threads": 1} | changes)))


def scores_through(runtime: ExportedRuntime, ranker: Ranker) -> list[float]:
    """Score one text after the other, each a batch of another shape, and then all of them as one batch."""
    reader, read_query = ranker.reader, ranker.reader.read_query(QUERY)
    dual = ranker.spec.plan == "dual"
    query = runtime.encode([reader.query_input(read_query)]).rows() if dual else None
    documents = []
    for text in TEXTS:
        chunks = reader.split(reader.read_document(text))
        inputs = [reader.chunk_input(None if dual else read_query, chunk) for chunk in chunks]
        documents.append(stacked(runtime.encode(inputs).rows()))
    found = runtime.score(documents, None if query is None else query * len(TEXTS))
    assert [len(row) for row in found.chunk_scores] == [len(each.vectors) for each in documents]
    return found.scores


# bf16 has 8 bits of significand: an error of some 0.4% of the largest value in a sum.
@pytest.mark.parametrize(
    ("precision", "bound"), [("fp32", 1e-5), pytest.param("bf16", 2e-2, marks=needs_bf16)]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_the_rankers_own(
    graphs: dict[str, Path], tiny_rankers: dict[str, Path], family: str, precision: str, bound: float
) -> None:
    ranker = open_ranker(tiny_rankers[family])
    wanted = [each.score for each in ranker.score(QUERY, TEXTS)]
    runtime = opened(graphs[family], precision=precision)
    capabilities = runtime.capabilities()
    assert (capabilities.runtime, capabilities.device) == ("openvino", "cpu")
    assert capabilities.precision == precision
    found = scores_through(runtime, ranker)
    assert found == pytest.approx(wanted, abs=bound)
    # The requested precision is the one that computes: rounded fp32, or bf16 without rounding, would show.
    assert (max(abs(np.subtract(found, wanted))) > 1e-6) == (precision == "bf16")


def batch(rows: int, length: int, token: int = 7) -> list[EncoderInput]:
    return [EncoderInput(*(np.full(length, value, dtype=np.int32) for value in (token, 3, 0)))] * rows


def vectors(runtime: ExportedRuntime, inputs: list[EncoderInput]) -> torch.Tensor:
    return stacked(runtime.encode(inputs).rows()).vectors


def test_lengths_come_in_steps_no_longer_than_the_ranker_reads(
    graphs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels are compiled for each new shape: see LENGTH_STEP."""
    lengths: list[int] = []
    begin = OpenVinoGraph.begin

    def watched(graph: OpenVinoGraph, inputs: Any) -> GraphRequest:
        lengths.append(inputs["roles"].shape[1])
        return begin(graph, inputs)

    monkeypatch.setattr(OpenVinoGraph, "begin", watched)
    runtime = opened(graphs["maxp"])
    for length in (3, 16, 17, 60, 64):
        runtime.encode(even_batch(1, length)).rows()
    assert lengths == [16, 16, 32, 64, 64]


def test_features_outlive_the_next_batch(graphs: dict[str, Path]) -> None:
    runtime = opened(graphs["maxp"])
    first = vectors(runtime, batch(2, 9))
    before = first.clone()
    second = vectors(runtime, batch(2, 9, token=11))
    assert torch.equal(first, before)
    assert not torch.allclose(first, second, atol=1e-3)


def test_any_thread_may_run_what_another_loaded(graphs: dict[str, Path]) -> None:
    runtime = opened(graphs["maxp"])
    wanted = vectors(runtime, batch(3, 17))
    found: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: found.append(vectors(runtime, batch(3, 17))))
    thread.start()
    thread.join()
    assert torch.equal(found[0], wanted)


def test_as_many_threads_compute_as_were_given(graphs: dict[str, Path]) -> None:
    for threads in (1, 2):
        compiled = OpenVinoGraph(graphs["maxp"] / "encoder.onnx", "f32", threads)._compiled
        assert compiled is not None
        assert compiled.get_property("INFERENCE_NUM_THREADS") == threads


def test_without_a_stream_the_calling_thread_computes(graphs: dict[str, Path]) -> None:
    inputs = {name: torch.ones(64, 64, dtype=torch.int64) for name in INPUTS}
    shares, found = [], []
    for streams in (0, 1):
        graph = OpenVinoGraph(graphs["maxp"] / "encoder.onnx", "f32", 1, streams)
        found.append(graph.run(inputs))
        own_s, all_s = time.thread_time(), time.process_time()
        for _ in range(20):
            graph.begin(inputs).outputs()
        shares.append((time.thread_time() - own_s) / (time.process_time() - all_s))
    assert shares[0] > 0.8 > 0.5 > shares[1]
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_without_a_stream_a_failure_is_raised_and_any_thread_may_run(graphs: dict[str, Path]) -> None:
    graph = OpenVinoGraph(graphs["maxp"] / "encoder.onnx", "f32", 1, streams=0)
    good = {name: torch.ones(2, 9, dtype=torch.int64) for name in INPUTS}
    wanted = graph.run(good)
    with pytest.raises(RuntimeError):
        graph.run(good | {"token_type_ids": torch.ones(3, 5, dtype=torch.int64)})
    found: list[list[torch.Tensor]] = []
    thread = threading.Thread(target=lambda: found.append(graph.run(good)))
    thread.start()
    thread.join()
    assert all(torch.equal(*pair) for pair in zip(found[0], wanted, strict=True))


def test_only_an_aggregator_that_leaves_no_chunk_out_runs_on_the_calling_thread(
    graphs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened_with: list[tuple[str, int, int]] = []

    def watched(path: Path, float_type: Any, threads: int, streams: int = 1, **rest: Any) -> OpenVinoGraph:
        opened_with.append((path.name, threads, streams))
        return OpenVinoGraph(path, float_type, threads, streams, **rest)

    monkeypatch.setattr(openvino_runtime, "OpenVinoGraph", watched)
    files = GraphFiles(graphs["maxp"] / "encoder.onnx", graphs["maxp"] / "aggregator.onnx", "fp32", 64)
    for leaves_out in (False, True):
        open_graphs(replace(files, leaves_chunks_out=leaves_out), Placement(threads=2))
    assert [rest for name, *rest in opened_with if name == "aggregator.onnx"] == [[1, 0], [2, 1]]


@pytest.mark.parametrize("rows", range(1, 8))
def test_halves_side_by_side_are_the_whole_in_its_order(graphs: dict[str, Path], rows: int) -> None:
    inputs = [batch(1, length)[0] for length in range(9, 9 + rows)]
    wanted = vectors(opened(graphs["maxp"]), inputs)
    assert torch.allclose(vectors(opened(graphs["maxp"], threads=2), inputs), wanted, atol=1e-5)


def test_batches_begun_behind_each_other_keep_their_features_and_share_the_time(
    graphs: dict[str, Path],
) -> None:
    inputs = [batch(rows, length, token) for rows, length, token in ((5, 64, 7), (1, 9, 8), (2, 33, 9))]
    wanted = [vectors(opened(graphs["maxp"]), each) for each in inputs]
    runtime = opened(graphs["maxp"], threads=2)
    assert (runtime.capabilities().queued, runtime.capabilities().parts) == (True, 2)
    assert opened(graphs["maxp"]).capabilities().parts == 1
    started_s = time.perf_counter()
    begun = [runtime.encode(each) for each in inputs]
    found = [stacked(each.rows()).vectors for each in begun]
    passed_s = time.perf_counter() - started_s
    for mine, theirs in zip(found, wanted, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)
    # Waiting behind another batch does not count as the device's time.
    took_s = [each.device_s() for each in begun]
    assert min(took_s) >= 0
    assert 0 < sum(took_s) <= passed_s


def test_a_part_that_fails_is_reported_when_the_other_is_done(graphs: dict[str, Path]) -> None:
    """Afterwards the next batch is encoded as usual."""
    whole, halves = (
        OpenVinoGraph(graphs["maxp"] / "encoder.onnx", "f32", 2, streams=streams) for streams in (1, 2)
    )
    streams = TwoStreams(whole, halves)
    good, bad = ({name: torch.ones(2, length, dtype=torch.int64) for name in INPUTS} for length in (9, 9))
    bad["token_type_ids"] = torch.ones(3, 5, dtype=torch.int64)
    wanted = streams.begin([good, good]).outputs()
    for parts in ([good, bad], [bad, good], [bad]):
        failing = streams.begin(parts)
        with pytest.raises(RuntimeError):
            failing.outputs()
        for mine, theirs in zip(streams.begin([good, good]).outputs(), wanted, strict=True):
            assert all(torch.equal(*pair) for pair in zip(mine, theirs, strict=True))


def test_warming_up_measures_a_speed(graphs: dict[str, Path]) -> None:
    assert opened(graphs["maxp"]).warm_up() > 0


@pytest.mark.parametrize(
    ("native", "precision", "float_type"),
    [(True, "int8", "bf16"), (False, "int8", "f32"), (True, "bf16", "bf16"), (True, "fp32", "f32")],
)
def test_int8_leaves_the_rest_to_bf16_where_the_processor_has_it(
    monkeypatch: pytest.MonkeyPatch, native: bool, precision: Any, float_type: str
) -> None:
    monkeypatch.setattr(openvino_runtime, "computes_bf16", lambda: native)
    assert openvino_runtime.float_type_for(precision) == float_type


@pytest.mark.parametrize(
    ("capabilities", "native"),
    [({"avx512_f": True}, False), ({"avx512_bf16": True}, True), ({"amx_bf16": True}, True), ({}, False)],
)
def test_avx512_alone_does_not_compute_in_bf16(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, bool], native: bool
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert computes_bf16() is native


def test_bf16_is_refused_where_it_would_be_simulated(
    monkeypatch: pytest.MonkeyPatch, graphs: dict[str, Path]
) -> None:
    monkeypatch.setattr(openvino_runtime, "computes_bf16", lambda: False)
    with pytest.raises(PrecisionAbsent, match="avx512_bf16 or amx_bf16"):
        opened(graphs["maxp"], precision="bf16")


@pytest.mark.parametrize(
    ("changes", "told", "message"),
    [
        ({"precision": "fp16"}, PrecisionAbsent, "not fp16"),
        ({"device": "toaster"}, DeviceAbsent, "'toaster'"),
        ({"device": "cuda:99"}, DeviceAbsent, "'cuda:99'"),
    ],
)
def test_absent_parts_stop_the_start(
    graphs: dict[str, Path], changes: dict[str, str], told: type[Exception], message: str
) -> None:
    with pytest.raises(told, match=message):
        opened(graphs["maxp"], **changes)


def test_absent_openvino_is_reported_with_the_command(
    monkeypatch: pytest.MonkeyPatch, graphs: dict[str, Path]
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(RuntimeAbsent, match=r"pip install 'farrank\[openvino\]'"):
        opened(graphs["maxp"])


# Takes the memory that a large batch needs from a process that has encoded small ones, and gives it back.
EXHAUSTION = """
import resource, sys
from pathlib import Path
import numpy as np
import torch
from farrank_rankers.features import stacked
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.graph_files import GraphFiles
from farrank_runtimes.openvino_runtime import OpenVinoGraph, open_graphs
from farrank_runtimes.runtime import OutOfMemory, Placement

folder = Path(sys.argv[1])
values = {"input_ids": 7, "roles": 3, "token_type_ids": 0}
if sys.argv[2] == "calling thread":
    graph = OpenVinoGraph(folder / "encoder.onnx", "f32", 1, streams=0)
    batch = lambda *shape: {name: torch.full(shape, value) for name, value in values.items()}
    vectors = lambda inputs: graph.run(inputs)[0]
else:
    files = GraphFiles(folder / "encoder.onnx", folder / "aggregator.onnx", "fp32", longest_input=64)
    runtime = open_graphs(files, Placement(threads=1))
    row = lambda length: EncoderInput(*(np.full(length, each, dtype=np.int32) for each in values.values()))
    batch = lambda rows, length: [row(length)] * rows
    vectors = lambda inputs: stacked(runtime.encode(inputs).rows()).vectors
shapes = [(1, 512), (2, 9), (1, 9), (2, 512)]
wanted = {shape: vectors(batch(*shape)) for shape in shapes}
large = batch(512, 512)
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
for shape in shapes:
    resource.setrlimit(resource.RLIMIT_AS, (taken + 2**25, resource.RLIM_INFINITY))
    try:
        print("scored", vectors(large).shape)
    except OutOfMemory:
        print("told")
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(bool((vectors(batch(*shape)) == wanted[shape]).all()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")
@pytest.mark.parametrize("runs", ["runtime", "calling thread"])
def test_real_exhaustion_is_reported_and_survived(graphs: dict[str, Path], runs: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXHAUSTION, str(graphs["maxp"]), runs],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["told", "True"] * 4), done.stderr


@pytest.mark.parametrize("change", [lambda path: path.write_bytes(b"other"), Path.unlink])
def test_a_graph_replaced_meanwhile_is_not_loaded_unchecked(
    graphs: dict[str, Path], tmp_path: Path, change: Callable[[Path], object]
) -> None:
    path = tmp_path / "encoder.onnx"
    path.write_bytes((graphs["maxp"] / "encoder.onnx").read_bytes())
    graph = OpenVinoGraph(path, "f32", 1)
    graph._compiled = None
    change(path)
    with pytest.raises(DeviceLost, match=r"encoder\.onnx"):
        graph.run({})
