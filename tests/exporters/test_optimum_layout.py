"""The files of `--layout optimum`: other libraries load them with the same scores, Farrank serves them."""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from farrank_exporters import optimum_exporter, optimum_layout
from farrank_exporters.optimum_exporter import QUANTIZED_FILES, best_instructions
from farrank_exporters.optimum_here import AskedExporter, Level, PlainPrecision
from farrank_exporters.optimum_layout import PlainExport, export_layout
from farrank_exporters.plain_graph import plain_output, trace_plain
from farrank_rankers.errors import ExportError, SourceError
from farrank_rankers.exports.manifest import Graph, sealed
from farrank_rankers.exports.published_parity import MEASURED as REPORT
from farrank_rankers.exports.published_parity import read_measured
from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.save import save_ranker
from farrank_rankers.ranker import Ranker
from farrank_runtimes.choose import open_ranker_runtime
from farrank_runtimes.runtime import Placement, PrecisionAbsent
from support import published_exports as made
from support.exported_rankers import MEASURED
from support.runtime_scores import QUERY, TEXTS, scores_through

HERE = importlib.util.find_spec("optimum") is not None
needs_optimum = pytest.mark.skipif(
    not HERE, reason="optimum is not installed: make test-transformers-4 has it"
)

CPU = Placement(device="cpu", threads=1)
# Other libraries cut a text at the model's limit.
SHORT = tuple(text for text in TEXTS if len(text) < 160)


@pytest.fixture(scope="module")
def traced() -> dict[tuple[str, str], tuple[Path, Graph]]:
    """Graphs that were traced before, by weights and output."""
    return {}


@pytest.fixture(autouse=True)
def traced_once(
    traced: dict[tuple[str, str], tuple[Path, Graph]],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Trace each model for the first test that asks, and copy its graph for the others."""

    def once(ranker: Ranker, path: Path) -> Graph:
        key = (ranker.weights_digest, plain_output(ranker))
        if key not in traced:
            kept = tmp_path_factory.mktemp("traced") / "model.onnx"
            traced[key] = kept, trace_plain(ranker, kept)
        kept, graph = traced[key]
        shutil.copy(kept, path)
        return graph

    monkeypatch.setattr(optimum_exporter, "trace_plain", once)


def export(source: Path, out: Path | None, precision: PlainPrecision = "fp32", **asked: Any) -> PlainExport:
    return export_layout(str(source), out, precision, MEASURED, **asked)


def published(folder: Path, kind: str = "cross-encoder") -> Path:
    folder.mkdir()
    (made.save_cross_encoder if kind == "cross-encoder" else made.save_biencoder)(folder)
    return folder


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", ["cross-encoder", "biencoder"])
def test_a_published_model_gets_a_folder_with_its_files_and_no_weights(kind: str, tmp_path: Path) -> None:
    source, out = published(tmp_path / "model", kind), tmp_path / "out"
    exported = export(source, out)
    assert exported.graph == out / "onnx" / "model.onnx"
    assert (exported.exporter, exported.precision) == ("torch", "fp32")
    assert files_in(out) == files_in(source) - {"model.safetensors"} | {"onnx/model.onnx", REPORT}
    assert (out / "config.json").read_bytes() == (source / "config.json").read_bytes()
    assert {each.name for each in tmp_path.iterdir()} == {"model", "out"}
    # A server finds this report, and reads no weights.
    served = open_ranker_runtime(str(out), {}, runtime="onnx", placement=CPU)
    found = scores_through(served.runtime, served.reader)
    expected = [each.score for each in open_ranker(source).score(QUERY, TEXTS)]
    assert found == pytest.approx(expected, abs=1e-5)
    assert {each.beyond for each in read_measured(out) if each.precision == "fp32"} == {None}
    assert served.parity is not None


def test_without_out_the_graph_comes_to_the_models_own_folder(tmp_path: Path) -> None:
    source = published(tmp_path / "model")
    before = files_in(source)
    assert export(source, None).graph == source / "onnx" / "model.onnx"
    assert files_in(source) == before | {"onnx/model.onnx", REPORT}
    with pytest.raises(ExportError, match=r"onnx/model\.onnx exists; --force replaces it"):
        export(source, None)
    (source / "onnx" / "model.onnx").write_bytes(b"another")
    export(source, None, replace_existing=True)
    assert (source / "onnx" / "model.onnx").stat().st_size > 10_000


def test_a_folder_of_another_model_is_left_as_it_is(tmp_path: Path) -> None:
    source, other = published(tmp_path / "model"), published(tmp_path / "other", "biencoder")
    before = files_in(other)
    with pytest.raises(
        ExportError, match=r"its config\.json is not that of .*/model; it must be new or empty"
    ):
        export(source, other)
    assert files_in(other) == before
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match=r"file: is not a folder"):
        export(source, tmp_path / "file")


def test_a_folder_with_other_weights_or_prompts_or_a_damaged_report_is_left_as_it_is(tmp_path: Path) -> None:
    source, other, out = published(tmp_path / "model"), tmp_path / "other", tmp_path / "out"
    other.mkdir()
    made.save_cross_encoder(other, seed=11)
    (other / "onnx").mkdir()
    before = files_in(other)
    # The weights themselves, then a graph of them alone.
    with pytest.raises(
        ExportError, match=r"model\.safetensors has other weights than .*/model; it must be new"
    ):
        export(source, other)
    export(other, out)
    (out / "onnx" / "model.onnx").rename(out / "onnx" / "model_O1.onnx")
    report = json.loads((out / REPORT).read_text())
    reports = [each | {"file": "onnx/model_O1.onnx"} for each in report["measured"]]
    (out / REPORT).write_text(json.dumps({"format": report["format"], **sealed({"measured": reports})}))
    with pytest.raises(ExportError, match=r"onnx/model_O1\.onnx has other weights than .*/model"):
        export(source, out)
    (other / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": {"query": "ask: "}, "default_prompt_name": "query"})
    )
    with pytest.raises(ExportError, match=r"its prompts or modules are not those of .*/model"):
        export(source, other)
    (other / "config_sentence_transformers.json").unlink()
    (other / REPORT).write_text("{")
    with pytest.raises(SourceError, match="is not JSON"):
        export(other, None)
    assert files_in(other) == before | {REPORT}
    (other / REPORT).unlink()
    (other / "onnx").rmdir()
    (other / "onnx").write_text("")
    with pytest.raises(
        ExportError, match=r"onnx/model\.onnx cannot be written: another file or folder is in its"
    ):
        export(other, None)


def test_an_empty_folder_is_filled_and_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = published(tmp_path / "model", "biencoder"), tmp_path / "out"
    (source / "checkpoint-5").mkdir()
    (source / "checkpoint-5" / "trainer_state.json").write_text("{}")
    out.mkdir()
    before = out.stat().st_ino
    monkeypatch.chdir(out)
    export(source, Path("."))
    assert out.stat().st_ino == before
    # A checkpoint, or an earlier export inside the model's folder, is not part of the model.
    inner = files_in(source) - {"model.safetensors", "checkpoint-5/trainer_state.json"}
    assert files_in(Path.cwd()) == inner | {"onnx/model.onnx", REPORT}
    assert not list(out.glob(".*"))


def test_weights_of_a_graph_that_was_replaced_go(tmp_path: Path) -> None:
    source = published(tmp_path / "model")
    export(source, None)
    made.with_external_weights(source / "onnx" / "model.onnx")
    export(source, None, replace_existing=True)
    assert {path.name for path in (source / "onnx").iterdir()} == {"model.onnx"}


@pytest.mark.skipif(HERE, reason="optimum is installed")
@pytest.mark.parametrize(
    ("asked", "named"),
    [({"precision": "int8"}, "--layout optimum --precision int8"), ({"level": "O2"}, "--optimize O2")],
)
def test_without_optimum_the_flag_that_needs_it_is_named(
    asked: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match=f"^{named} needs optimum, which is not installed"):
        export(published(tmp_path / "model"), tmp_path / "out", **asked)


def test_rankers_without_a_plain_graph_are_refused(tiny_rankers: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(
        ExportError,
        match=r"has no plain graph: a parade-attn is neither a classifier.*--layout farrank exports it",
    ):
        export(tiny_rankers["parade-attn"], tmp_path / "out")
    artifact = tmp_path / "artifact"
    save_ranker(open_ranker(published(tmp_path / "bi", "biencoder"), truncate_dim=16), artifact)
    with pytest.raises(ExportError, match="truncate_dim is 16, which such a folder cannot express"):
        export(artifact, tmp_path / "out")
    save_ranker(open_ranker(tmp_path / "bi"), tmp_path / "ranker")
    with pytest.raises(ExportError, match=r"--out is missing: .*ranker is not a folder of a published model"):
        export(tmp_path / "ranker", None)
    with pytest.raises(ExportError, match="--optimize O2: int8 quantizes the unoptimised graph"):
        export(tmp_path / "bi", tmp_path / "out", "int8", level="O2")
    assert not (tmp_path / "out").exists()


def test_beyond_its_bound_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = published(tmp_path / "model"), tmp_path / "out"
    (tmp_path / "other").mkdir()
    made.save_cross_encoder(tmp_path / "other", seed=11)
    other = open_ranker(tmp_path / "other")
    # As if the tracer had a bug: another model's graph.
    monkeypatch.setattr(
        optimum_layout, "export_plain", lambda exporter, ranker, path: trace_plain(other, path)
    )
    with pytest.raises(ExportError, match=r"beyond its bound: .*max_difference is .*nothing was written"):
        export(source, out)
    assert {each.name for each in tmp_path.iterdir()} == {"model", "other"}
    exported = export(source, out, allow_drift=True)
    beyond = {each.runtime for each in exported.measured if each.precision == "fp32" and each.beyond}
    assert beyond == {"onnx", "openvino"}
    assert exported.graph.is_file()
    # A server takes it only by name, because its report is beyond its bound.
    with pytest.raises(PrecisionAbsent, match=r"beyond its bound.*export_file serves it by name"):
        open_ranker_runtime(str(out), {}, placement=CPU)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_an_artifact_becomes_a_folder_that_opens_alike(pooling: str, tmp_path: Path) -> None:
    (tmp_path / "bi").mkdir()
    made.save_biencoder(tmp_path / "bi", pooling)
    source = published(tmp_path / "ce")
    for folder, changes in (
        (tmp_path / "bi", {"query_prefix": "ask: "}),
        (source, {"query_prefix": "ask: "}),
    ):
        ranker = open_ranker(folder, **changes)  # type: ignore[arg-type]
        artifact, out = folder.with_suffix(".artifact"), folder.with_suffix(".out")
        save_ranker(ranker, artifact)
        export(artifact, out)
        served = open_ranker_runtime(str(out), {}, runtime="onnx", placement=CPU)
        assert served.reader.spec.options == ranker.spec.options
        expected = [each.score for each in ranker.score(QUERY, TEXTS)]
        assert scores_through(served.runtime, served.reader) == pytest.approx(expected, abs=1e-5)


@needs_optimum
@pytest.mark.parametrize(
    ("exporter", "level"), [("torch", None), ("optimum", None), ("auto", "O1"), ("auto", "O2")]
)
@pytest.mark.parametrize("of", ["published", "artifact"])
def test_others_libraries_load_a_cross_encoder_with_the_same_scores(
    of: str, exporter: AskedExporter, level: Level | None, tmp_path: Path
) -> None:
    from optimum.onnxruntime import ORTModelForSequenceClassification
    from sentence_transformers import CrossEncoder
    from transformers import AutoTokenizer

    source, out = published(tmp_path / "model"), tmp_path / "out"
    expected = [each.score for each in open_ranker(source).score(QUERY, SHORT)]
    if of == "artifact":
        save_ranker(open_ranker(source), source := tmp_path / "artifact")
    exported = export(source, out, exporter=exporter, level=level)
    name = exported.graph.name

    pairs = [(QUERY, text) for text in SHORT]
    model = ORTModelForSequenceClassification.from_pretrained(out, file_name=name, subfolder="onnx")
    read = AutoTokenizer.from_pretrained(out)
    given = read([QUERY] * len(SHORT), list(SHORT), padding=True, return_tensors="pt")
    logits = model(**given).logits[:, 0].tolist()
    assert logits == pytest.approx(expected, abs=1e-5)

    asked = {"file_name": name}
    theirs = CrossEncoder(str(out), backend="onnx", model_kwargs=asked, activation_fn=torch.nn.Identity())
    assert theirs.predict(pairs).tolist() == pytest.approx(expected, abs=1e-5)
    if of == "artifact":  # its folder declares scores to be logits
        said = CrossEncoder(str(out), backend="onnx", model_kwargs=asked)
        assert said.predict(pairs).tolist() == pytest.approx(expected, abs=1e-5)


@needs_optimum
@pytest.mark.parametrize("of", ["published", "artifact"])
@pytest.mark.parametrize("exporter", ["torch", "optimum"])
def test_sentence_transformers_loads_a_biencoder_with_the_same_vectors(
    of: str, exporter: AskedExporter, tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    source, out = published(tmp_path / "model", "biencoder"), tmp_path / "out"
    expected = SentenceTransformer(str(source), device="cpu").encode([QUERY, *SHORT])
    if of == "artifact":
        save_ranker(open_ranker(source), source := tmp_path / "artifact")
    export(source, out, exporter=exporter)
    found = SentenceTransformer(str(out), backend="onnx").encode([QUERY, *SHORT])
    assert abs(found - expected).max() < 1e-5


@needs_optimum
def test_int8_and_fp16_are_served_where_they_keep_their_bound(tmp_path: Path) -> None:
    source, out = published(tmp_path / "model", "biencoder"), tmp_path / "out"
    half = export(source, out, level="O4")
    assert (half.precision, half.graph.name, half.exporter) == ("fp16", "model_O4.onnx", "optimum")
    quantized = export(source, out, "int8", allow_drift=True)
    assert quantized.graph.name == QUANTIZED_FILES[best_instructions()]
    reports = {each.file: each for each in read_measured(out)}
    assert set(reports) == {"onnx/model_O4.onnx", f"onnx/{quantized.graph.name}"}
    assert reports["onnx/model_O4.onnx"].beyond is None
    chosen = f"onnx/{quantized.graph.name}"
    served = open_ranker_runtime(str(out), {}, placement=CPU, export_file=chosen)
    assert served.runtime.capabilities().precision == "int8"


def test_prompts_and_labels_are_written_for_an_artifact(tmp_path: Path) -> None:
    source = published(tmp_path / "model")
    save_ranker(open_ranker(source, query_prefix="ask: "), tmp_path / "artifact")
    export(tmp_path / "artifact", out := tmp_path / "out")
    said = json.loads((out / "config_sentence_transformers.json").read_text())
    assert said["prompts"] == {"query": "ask: "}
    assert said["default_prompt_name"] == "query"
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert len(config["id2label"]) == 1
