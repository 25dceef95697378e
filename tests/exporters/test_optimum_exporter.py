"""optimum's tracer, optimizations and quantization. Tests that need optimum run where it is installed."""

import importlib.util
from pathlib import Path

import onnx
import pytest

from farrank_exporters import optimum_exporter
from farrank_exporters.export import export_ranker
from farrank_exporters.optimum_exporter import (
    QUANTIZED_FILES,
    best_instructions,
    check_here,
    chosen_exporter,
    export_plain,
    optimise,
    quantize,
    why_not_optimum,
)
from farrank_rankers.errors import ExportError
from farrank_rankers.exports.published_files import PublishedFile, find_published
from farrank_rankers.files.model_files import ModelFiles, locate
from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.save import save_ranker
from farrank_runtimes.published_graph import read_graph
from support import published_exports as made
from support.classifiers import cross_encoder
from support.exported_rankers import CALIBRATION, MEASURED

HERE = importlib.util.find_spec("optimum") is not None
needs_optimum = pytest.mark.skipif(
    not HERE, reason="optimum is not installed: make test-transformers-4 has it"
)


@pytest.mark.skipif(HERE, reason="optimum is installed")
def test_without_optimum_torch_traces_and_optimum_is_refused_by_name(tmp_path: Path) -> None:
    made.save_cross_encoder(tmp_path)
    ranker = open_ranker(tmp_path)
    assert chosen_exporter("auto", ranker) == "torch"
    with pytest.raises(ExportError, match=r"-c constraints-transformers-4\.txt 'farrank\[optimum\]'"):
        chosen_exporter("optimum", ranker)
    with pytest.raises(ExportError, match="--optimize O2 needs optimum, which is not installed"):
        check_here("--optimize O2")


@needs_optimum
def test_optimum_traces_what_it_is_asked_for_or_preferred_for(
    tiny_rankers: dict[str, Path], tmp_path: Path
) -> None:
    made.save_cross_encoder(tmp_path)
    ranker, other = open_ranker(tmp_path), open_ranker(tiny_rankers["parade-attn"])
    assert chosen_exporter("auto", ranker) == chosen_exporter("torch", ranker) == "torch"
    assert chosen_exporter("optimum", ranker) == "optimum"
    assert chosen_exporter("auto", ranker, prefers_optimum=True) == "optimum"
    assert chosen_exporter("torch", ranker, prefers_optimum=True) == "torch"
    assert chosen_exporter("auto", other, prefers_optimum=True) == "torch"
    with pytest.raises(ExportError, match="--exporter optimum: a parade-attn is neither a classifier"):
        chosen_exporter("optimum", other)


@needs_optimum
def test_an_architecture_that_optimum_lacks_is_named(
    tiny_rankers: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from optimum.exporters.tasks import TasksManager

    ranker = open_ranker(tiny_rankers["biencoder"])
    assert why_not_optimum(ranker) is None
    monkeypatch.delitem(TasksManager._SUPPORTED_MODEL_TYPE, "bert")
    assert why_not_optimum(ranker) == "optimum knows no architecture bert"


@needs_optimum
@pytest.mark.parametrize("name", ["cross-encoder", "biencoder"])
def test_an_artifacts_export_is_made_of_optimums_graph_and_keeps_its_bound(name: str, tmp_path: Path) -> None:
    published, artifact = tmp_path / "published", tmp_path / "artifact"
    published.mkdir()
    (made.save_cross_encoder if name == "cross-encoder" else made.save_biencoder)(published)
    save_ranker(open_ranker(published), artifact)
    ranker = open_ranker(artifact)
    exports = {
        exporter: export_ranker(
            ranker,
            artifact,
            "onnx",
            "fp32",
            measured=MEASURED,
            calibration=CALIBRATION,
            exporter=exporter,
            replace_existing=True,
        ).manifest
        for exporter in ("torch", "optimum")
    }
    for exporter, manifest in exports.items():
        assert manifest.exporter == exporter
        assert manifest.runtimes == ("onnx", "openvino")
        assert [each.kendall_tau for each in manifest.parity] == [1.0, 1.0]
        assert manifest.graphs == exports["torch"].graphs
    assert "optimum-onnx" in exports["optimum"].created_with
    # The graphs themselves differ.
    assert exports["torch"].checksums["encoder.onnx"] != exports["optimum"].checksums["encoder.onnx"]
    with pytest.raises(ExportError, match="--exporter optimum: it writes fp16 only on a GPU"):
        export_ranker(
            ranker,
            artifact,
            "onnx",
            "fp16",
            measured=MEASURED,
            calibration=CALIBRATION,
            served_by=(),
            exporter="optimum",
        )


@needs_optimum
@pytest.mark.parametrize("kind", ["deberta-v2", "modernbert"])
def test_both_runtimes_load_optimums_graph_of_newer_architectures(kind: str, tmp_path: Path) -> None:
    """OpenVINO refused DeBERTa's, which asked in a branch whether there are as many keys as queries."""
    published, artifact = tmp_path / "published", tmp_path / "artifact"
    published.mkdir()
    save_ranker(cross_encoder(kind, published), artifact)
    manifest = export_ranker(
        open_ranker(artifact),
        artifact,
        "onnx",
        "fp32",
        measured=MEASURED,
        calibration=CALIBRATION,
        exporter="optimum",
    ).manifest
    assert manifest.runtimes == ("onnx", "openvino")
    assert [each.kendall_tau for each in manifest.parity] == [1.0, 1.0]


@needs_optimum
def test_levels_fuse_more_and_more(tmp_path: Path) -> None:
    made.save_cross_encoder(tmp_path)
    ranker = open_ranker(tmp_path)
    nodes, domains = {}, {}
    for level in (None, "O1", "O2", "O3", "O4"):
        path = tmp_path / "onnx" / "model.onnx"
        path.parent.mkdir(exist_ok=True)
        export_plain("optimum", ranker, path)
        if level is not None:
            optimise(path, level, ranker.encoder.backbone.config)
        found = read_graph(PublishedFile(tmp_path, "onnx/model.onnx", "onnx", None))
        nodes[level] = len(onnx.load(path).graph.node)
        domains[level] = found.operators_of
        assert found.precision == ("fp16" if level == "O4" else "fp32")
        assert list(path.parent.iterdir()) == [path]
    assert nodes[None] > nodes["O1"] > nodes["O2"] >= nodes["O3"]
    assert domains[None] == domains["O1"] == ()
    assert domains["O2"] == domains["O3"] == ("com.microsoft",)


@needs_optimum
@pytest.mark.parametrize("instructions", QUANTIZED_FILES)
def test_int8_is_quantized_and_found_by_its_name(instructions: str, tmp_path: Path) -> None:
    made.save_cross_encoder(tmp_path)
    path = tmp_path / "onnx" / QUANTIZED_FILES[instructions]  # type: ignore[index]
    path.parent.mkdir()
    export_plain("optimum", open_ranker(tmp_path), path)
    before = path.stat().st_size
    quantize(path, instructions)  # type: ignore[arg-type]
    assert path.stat().st_size < before
    (found,) = find_published(ModelFiles.find(locate(tmp_path)))
    assert (found.file, found.precision, found.instructions) == (f"onnx/{path.name}", "int8", instructions)
    assert read_graph(found).precision == "int8"


def test_int8_is_for_the_best_instructions_here(monkeypatch: pytest.MonkeyPatch) -> None:
    for here, best in ((("avx2", "avx512", "avx512_vnni"), "avx512_vnni"), (("avx2",), "avx2")):
        monkeypatch.setattr(optimum_exporter, "processor_instructions", lambda here=here: frozenset(here))
        assert best_instructions() == best
    monkeypatch.setattr(optimum_exporter, "processor_instructions", frozenset)
    with pytest.raises(ExportError, match="has none of avx512_vnni, avx512, avx2, arm64"):
        best_instructions()


@needs_optimum
def test_optimums_errors_are_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from optimum.exporters import onnx as exporters

    made.save_cross_encoder(tmp_path)

    def fail(*_given: object, **_named: object) -> None:
        raise RuntimeError("first line\nsecond")

    monkeypatch.setattr(exporters, "export", fail)
    with pytest.raises(ExportError, match=r"^optimum cannot trace it: first line$"):
        export_plain("optimum", open_ranker(tmp_path), tmp_path / "model.onnx")
