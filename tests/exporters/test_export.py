"""The files of exports, and failed exports, which leave no file."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import farrank_exporters.export
import farrank_exporters.parity
import farrank_exporters.trace
from farrank_exporters.export import export_ranker, open_runtime
from farrank_exporters.parity import BeyondBound, TextScores, measure
from farrank_rankers.errors import ExportError
from farrank_rankers.exports.export_folder import Export, ExportedRanker, open_exported
from farrank_rankers.exports.manifest import ExportParity
from farrank_rankers.files.open import open_ranker
from farrank_runtimes import onnx_runtime
from farrank_runtimes.graph_files import GraphFiles
from farrank_runtimes.openvino_runtime import computes_bf16
from farrank_runtimes.runtime import OutOfMemory, Placement, Runtime
from support.exported_rankers import CALIBRATION, MEASURED, TracedRanker, text


def artifact_of(export: Export) -> Path:
    return export.folder.parent.parent


def test_the_manifest_tells_what_was_made(exported: Export) -> None:
    artifact = artifact_of(exported)
    manifest = Export.read(artifact / "exports" / "onnx-fp32").manifest
    ranker = open_ranker(artifact)
    assert manifest == exported.manifest
    assert (manifest.stored_as, manifest.family) == ("fp32", "biencoder")
    assert manifest.evidence is ranker.aggregator.evidence
    assert (manifest.source_version, manifest.weights_digest) == (ranker.version, ranker.weights_digest)
    assert manifest.created_with["torch"] == torch.__version__
    assert manifest.runtimes == tuple(parity.runtime for parity in manifest.parity) == ("onnx", "openvino")
    for parity in manifest.parity:
        assert (parity.queries, parity.documents) == (2, 12)
        assert parity.max_difference <= 1e-5
    assert set(manifest.checksums) == {path.name for path in exported.folder.iterdir()} - {"manifest.json"}
    assert sorted(path.name for path in exported.folder.parent.iterdir()) == ["onnx-fp32"]


def test_an_export_opens_and_scores_as_its_ranker(exported: Export) -> None:
    opened = open_exported(exported)
    ranker = open_ranker(artifact_of(exported))
    assert opened.version == ranker.version
    documents = [text(70, 2), "", text(300, 1), text(2, 0)]
    expected = [each.score for each in ranker.score("another query", documents)]
    for name in ("onnx", "openvino"):
        found = TextScores(open_runtime(name, opened), opened.reader, documents).score("another query")
        assert found.tolist() == pytest.approx(expected, abs=1e-5)


@pytest.fixture
def artifact(tiny_rankers: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_rankers["maxp"], tmp_path / "maxp"))


def export(artifact: Path, precision: Any = "fp32", form: Any = "onnx", **arguments: Any) -> Export:
    return export_ranker(
        open_ranker(artifact),
        artifact,
        form,
        precision,
        measured=MEASURED,
        calibration=CALIBRATION,
        **arguments,
    )


def files(artifact: Path) -> dict[str, bytes]:
    found = [path for path in artifact.rglob("*") if path.is_file()]
    return {str(path.relative_to(artifact)): path.read_bytes() for path in found}


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        ("Exception from src/core.cpp:132:\nUnexpected: no If of dynamic rank\n\n", "Unexpected: no If of"),
        ("", "RuntimeError"),
    ],
)
@pytest.mark.usefixtures("traced_before")
def test_a_runtime_that_refuses_the_graph_says_why_in_one_line(
    artifact: Path, monkeypatch: pytest.MonkeyPatch, raised: str, reason: str
) -> None:
    def refuse(*_given: Any) -> Any:
        raise RuntimeError(raised)

    before = files(artifact)
    monkeypatch.setattr(farrank_exporters.export, "open_export", refuse)
    with pytest.raises(ExportError, match=f"^onnx refuses the graph: {reason}[^\\n]*$"):
        export(artifact)
    assert files(artifact) == before


@pytest.mark.usefixtures("traced_before")
def test_memory_that_runs_out_is_not_the_graphs_fault(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhaust(*_given: Any) -> Any:
        raise OutOfMemory("no memory")

    monkeypatch.setattr(farrank_exporters.export, "open_export", exhaust)
    with pytest.raises(OutOfMemory, match=r"^no memory$"):
        export(artifact)


@pytest.mark.usefixtures("traced_before")
def test_every_precision_has_a_folder_of_its_own(artifact: Path, any_tau: None) -> None:
    lines: list[str] = []
    half = export(artifact, "fp16", progress=lambda text, *_: lines.append(text))
    assert half.manifest.stored_as == "fp16"
    assert [(each.runtime, each.bound) for each in half.manifest.parity] == [("onnx", "kendall_tau >= -1")]
    assert half.manifest.parity[0].max_difference > 1e-6
    assert half.manifest.parity[0].computed_in == "fp32 between fp16 values"
    assert lines[0] == "scoring with torch, query 1 of 2"
    assert lines[-1] == "scoring with onnx, query 2 of 2"
    full = export(artifact)
    assert {path.name for path in full.folder.parent.iterdir()} == {"onnx-fp16", "onnx-fp32"}
    with pytest.raises(ExportError, match="onnx-fp32 exists; --force replaces it"):
        export(artifact)


@pytest.mark.skipif(not computes_bf16(), reason="the processor has no arithmetic in bf16")
@pytest.mark.usefixtures("traced_before")
def test_bf16_is_the_graph_of_fp32_for_openvino(artifact: Path, any_tau: None) -> None:
    made = export(artifact, "bf16")
    full = export(artifact)
    assert (made.manifest.stored_as, made.manifest.runtimes) == ("fp32", ("openvino",))
    assert made.manifest.checksums == full.manifest.checksums
    (parity,) = made.manifest.parity
    assert (parity.runtime, parity.computed_in) == ("openvino", "bf16")
    assert parity.max_difference > 10 * full.manifest.parity[1].max_difference


@pytest.mark.usefixtures("traced_before", "quantized_once")
def test_int8_has_an_encoder_for_each_runtime(artifact: Path, any_tau: None) -> None:
    made = export(artifact, "int8")
    encoder = made.manifest.graphs["encoder"]
    assert (made.manifest.stored_as, encoder.variants) == ("int8", {"openvino": "encoder.xml"})
    assert set(made.manifest.checksums) == {"encoder.onnx", "encoder.xml", "encoder.bin", "aggregator.onnx"}
    assert {path.name for path in made.folder.iterdir()} == {*made.manifest.checksums, "manifest.json"}
    # The umask decides: a server image's user must be able to read a mounted folder.
    assert {path.stat().st_mode for path in made.folder.iterdir()} == {
        (artifact / "config.json").stat().st_mode
    }
    for parity in made.manifest.parity:
        assert parity.computed_in.startswith("int8")
        assert parity.max_difference > 1e-6
    assert open_exported(made).export == made


@pytest.fixture
def beyond(monkeypatch: pytest.MonkeyPatch, any_tau: None) -> set[str]:
    """Let these runtimes' scores count as beyond their bound."""
    names: set[str] = set()

    def measured(*arguments: Any, **named: Any) -> ExportParity:
        parity = measure(*arguments, **named)
        if parity.runtime in names:
            raise BeyondBound(f"with {parity.runtime} the bound is not held", parity)
        return parity

    monkeypatch.setattr(farrank_exporters.export, "measure", measured)
    return names


@pytest.mark.parametrize(
    ("refused", "kept", "encoder"),
    [("onnx", "openvino", {"encoder.xml", "encoder.bin"}), ("openvino", "onnx", {"encoder.onnx"})],
)
@pytest.mark.usefixtures("traced_before", "quantized_once")
def test_in_int8_a_runtime_beyond_its_bound_is_left_out(
    artifact: Path, beyond: set[str], refused: str, kept: Any, encoder: set[str]
) -> None:
    beyond.add(refused)
    made = export(artifact, "int8")
    manifest = Export.read(artifact / "exports" / "onnx-int8").manifest
    assert manifest == made.manifest
    assert manifest.runtimes == tuple(each.runtime for each in manifest.parity) == (kept,)
    (left_out,) = manifest.refused
    assert (left_out.runtime, left_out.reason) == (refused, f"with {refused} the bound is not held")
    assert left_out.parity is not None
    assert (left_out.parity.runtime, left_out.parity.documents) == (refused, 12)
    assert set(manifest.checksums) == {*encoder, "aggregator.onnx"}
    assert {path.name for path in made.folder.iterdir()} == {*manifest.checksums, "manifest.json"}
    opened = open_exported(made)
    found = TextScores(open_runtime(kept, opened), opened.reader, MEASURED.documents).score("neural query")
    expected = [each.score for each in open_ranker(artifact).score("neural query", MEASURED.documents)]
    assert found.tolist() == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize(
    ("precision", "runtimes"), [("int8", {"onnx", "openvino"}), ("fp32", {"onnx"}), ("fp32", {"openvino"})]
)
@pytest.mark.usefixtures("traced_before", "quantized_once")
def test_nothing_is_left_without_a_runtime_or_of_a_graph_for_all(
    artifact: Path, beyond: set[str], precision: str, runtimes: set[str]
) -> None:
    beyond.update(runtimes)
    before = files(artifact)
    reasons = "; ".join(f"with {name} the bound is not held" for name in sorted(runtimes))
    with pytest.raises(ExportError, match=f"beyond its bound: {reasons}; nothing was written"):
        export(artifact, precision)
    assert files(artifact) == before


@pytest.mark.usefixtures("traced_before")
def test_beyond_its_bound_nothing_is_left(
    artifact: Path, traced_rankers: dict[str, TracedRanker], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(artifact)
    ranker = open_ranker(artifact)
    # The graphs belong to the weights before this change.
    with torch.no_grad():
        next(ranker.aggregator.parameters()).mul_(2.0)
    with pytest.raises(ExportError, match="the export is beyond its bound: with onnx max_difference is"):
        export_ranker(ranker, artifact, "onnx", "fp32", measured=MEASURED, calibration=CALIBRATION)
    assert files(artifact) == before
    assert not (artifact / "exports").exists()


@pytest.mark.usefixtures("traced_before", "quantized_once")
def test_drift_may_be_allowed_and_is_written_down(artifact: Path, beyond: set[str]) -> None:
    beyond.update({"onnx", "openvino"})
    made = export(artifact, "int8", allow_drift=True)
    manifest = Export.read(artifact / "exports" / "onnx-int8").manifest
    assert manifest == made.manifest
    assert manifest.drifting == manifest.runtimes == ("onnx", "openvino")
    assert [each.runtime for each in manifest.parity] == ["onnx", "openvino"]
    assert manifest.refused == ()


@pytest.mark.usefixtures("traced_before")
def test_drift_cannot_be_allowed_where_scores_are_no_numbers(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*_: Any) -> Any:
        return np.full(len(MEASURED.documents), np.nan)

    monkeypatch.setattr(TextScores, "score", nothing)
    with pytest.raises(ExportError, match="with onnx query 1, document 1 has the score nan"):
        export(artifact, allow_drift=True)
    assert not (artifact / "exports").exists()


@pytest.mark.usefixtures("traced_before")
def test_a_hopeless_export_is_given_up_early(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranking is reversed: after the first of two queries the mean can no longer reach the bound."""
    monkeypatch.setattr(TextScores, "score", lambda *_: -np.arange(12.0))
    lines: list[str] = []
    with pytest.raises(ExportError, match=r"with onnx kendall_tau is \S+ after 1 of 2 queries, but it must"):
        export(artifact, "fp16", progress=lambda text, *_: lines.append(text))
    assert lines[-1] == "scoring with onnx, query 1 of 2"
    lines.clear()
    made = export(artifact, "fp16", allow_drift=True, progress=lambda text, *_: lines.append(text))
    assert made.manifest.parity[0].queries == 2
    assert lines[-1].startswith("scoring with onnx, query 2 of 2 (kendall_tau is ")


@pytest.mark.usefixtures("traced_before")
def test_a_failed_replacement_leaves_the_old_export(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(artifact)
    before = files(artifact)

    def fail(*_: Any) -> None:
        raise ExportError("no runtime today")

    monkeypatch.setattr(farrank_exporters.export, "open_runtime", fail)
    with pytest.raises(ExportError, match="no runtime today"):
        export(artifact, replace_existing=True)
    assert files(artifact) == before


@pytest.mark.parametrize(("precision", "stored_as"), [("bf16", "fp32"), ("int8", "int8")])
@pytest.mark.usefixtures("traced_before", "quantized_once")
def test_tensorrts_graphs_are_measured_and_kept(
    artifact: Path, monkeypatch: pytest.MonkeyPatch, any_tau: None, precision: str, stored_as: str
) -> None:
    """ONNX Runtime on the CPU takes TensorRT's place, because it reads the same graphs."""

    def on_the_cpu(name: str, exported: ExportedRanker) -> Runtime:
        return onnx_runtime.open_graphs(GraphFiles.of(exported, name), Placement("cpu", 1))

    monkeypatch.setattr(farrank_exporters.export, "runtimes_for", lambda *_: ("tensorrt",))
    monkeypatch.setattr(farrank_exporters.export, "open_runtime", on_the_cpu)
    made = export(artifact, precision, "tensorrt")
    manifest = made.manifest
    assert (manifest.name, manifest.stored_as) == (f"tensorrt-{precision}", stored_as)
    assert manifest.runtimes == ("tensorrt",)
    assert manifest.graphs["encoder"].variants == {}
    assert set(manifest.checksums) == {"encoder.onnx", "aggregator.onnx"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="may have TensorRT")
def test_without_tensorrt_the_command_that_installs_it_is_named(artifact: Path) -> None:
    before = files(artifact)
    with pytest.raises(ExportError, match=r"tensorrt in fp16 is measured with tensorrt, .* pip "):
        export(artifact, "fp16", "tensorrt")
    assert files(artifact) == before


def test_large_weights_have_their_own_file_and_nothing_is_printed(
    artifact: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(farrank_exporters.trace, "INLINE_BYTES", 1000)
    lines: list[tuple[str, int, int]] = []
    made = export(artifact, progress=lambda *step: lines.append(step))
    assert set(made.manifest.checksums) == {"aggregator.onnx", "encoder.onnx", "encoder.onnx.data"}
    assert (made.folder / "encoder.onnx").stat().st_size < 1_000_000
    assert len({path.stat().st_mode for path in made.folder.iterdir()}) == 1
    assert [parity.runtime for parity in made.manifest.parity] == ["onnx", "openvino"]
    assert lines[:2] == [("tracing the encoder", 0, 10), ("tracing the aggregator", 1, 10)]
    assert lines[-1] == ("scoring with openvino, query 2 of 2", 9, 10)
    assert capfd.readouterr() == ("", "")
