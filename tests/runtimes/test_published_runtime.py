"""Published graphs served as they are: chosen, checked, and with the scores of their model's weights."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from safetensors.torch import save_file
from sentence_transformers import CrossEncoder, SentenceTransformer
from torch import nn

from farrank_rankers.errors import ExportError, SourceError, SpecError, WeightsError
from farrank_rankers.exports import published_files
from farrank_rankers.features import stacked
from farrank_rankers.files.model_files import ModelFiles, locate
from farrank_rankers.files.open import open_ranker
from farrank_runtimes import choose, published_runtime
from farrank_runtimes.choose import ServableRanker, open_ranker_runtime
from farrank_runtimes.runtime import Placement, PrecisionAbsent, RuntimeAbsent
from support import published_exports as made
from support.language_models import make_language_model
from support.made_once import made_once

QUERY = "search query"
# One of them has several chunks.
DOCUMENTS = ("the long document ranks chunks", "windows slide over text " * 60, "", "neural model of a score")
CPU = Placement(device="cpu", threads=1)


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A cross-encoder with graphs of every kind, one with two labels, and bi-encoders."""

    def make(folder: Path) -> None:
        for name in ("cross-encoder", "two-labels", "biencoder", "pooled"):
            (folder / name).mkdir()
        model = made.save_cross_encoder(folder / "cross-encoder")
        graph = made.write_onnx(model, folder / "cross-encoder" / "onnx" / "model.onnx")
        for name in ("avx512_vnni", "avx512", "arm64"):
            made.quantized(graph, f"model_qint8_{name}.onnx")
        made.quantized(graph, "model_quint8_avx2.onnx")
        made.write_openvino(graph, folder / "cross-encoder" / "openvino")
        made.write_onnx(
            made.save_cross_encoder(folder / "two-labels", labels=2), folder / "two-labels" / "model.onnx"
        )
        model = made.save_biencoder(folder / "biencoder")
        graph = made.write_onnx(model, folder / "biencoder" / "onnx" / "model.onnx", "last_hidden_state")
        made.with_external_weights(graph)
        model = made.save_biencoder(folder / "pooled")
        made.write_onnx(model, folder / "pooled" / "onnx" / "model.onnx", "sentence_embedding")

    folder = made_once(tmp_path_factory, "published", make)
    return {path.name: path for path in folder.iterdir()}


def opened(folder: Path, **asked: Any) -> ServableRanker:
    return open_ranker_runtime(str(folder), asked.pop("overrides", {}), placement=CPU, **asked)


def scores(served: ServableRanker) -> list[float]:
    reader, runtime = served.reader, served.runtime
    query = reader.read_query(QUERY)
    dual = reader.spec.plan == "dual"
    split = [reader.split(reader.read_document(text)) for text in DOCUMENTS]
    parts = [
        stacked(runtime.encode([reader.chunk_input(None if dual else query, each) for each in chunks]).rows())
        for chunks in split
    ]
    [of_query] = runtime.encode([reader.query_input(query)]).rows() if dual else [None]
    return runtime.score(parts, [of_query] * len(parts) if of_query else None).scores


def weights_scores(folder: Path, **overrides: Any) -> list[float]:
    return [each.score for each in open_ranker(folder, **overrides).score(QUERY, DOCUMENTS)]


@pytest.mark.parametrize("family", ["maxp", "firstp", "avgp"])
@pytest.mark.parametrize("runtime", ["onnx", "openvino"])
@pytest.mark.parametrize("name", ["cross-encoder", "biencoder"])
def test_whole_documents_have_the_scores_of_the_weights(
    published: dict[str, Path], name: str, runtime: str, family: str
) -> None:
    overrides = {"family": family, "window": 40, "stride": 30 if family == "maxp" else 40}
    served = opened(published[name], runtime=runtime, overrides=overrides)
    assert served.runtime.capabilities().runtime == runtime
    assert scores(served) == pytest.approx(weights_scores(published[name], **overrides), abs=1e-5)


def test_graphs_of_two_labels_in_the_models_own_folder_and_of_pooled_vectors(
    published: dict[str, Path],
) -> None:
    """The files that optimum writes into the model's folder, and for sentence-transformers with pooling."""
    for name, file in (("two-labels", "model.onnx"), ("pooled", "onnx/model.onnx")):
        served = opened(published[name], runtime="onnx")
        assert f"onnx with {file}, as configured" in served.reason
        assert scores(served) == pytest.approx(weights_scores(published[name]), abs=1e-5)


def test_the_last_token_is_pooled_behind_a_graph(published: dict[str, Path], tmp_path: Path) -> None:
    folder = made.copied(published["biencoder"], tmp_path / "last")
    (folder / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode": "lasttoken"}))
    expected = weights_scores(folder)
    assert scores(opened(folder, runtime="onnx")) == pytest.approx(expected, abs=1e-5)
    assert expected != pytest.approx(weights_scores(published["biencoder"]), abs=1e-3)


class Projected(nn.Module):
    """A model with a linear layer on each token's vector, and so on their mean."""

    def __init__(self, model: nn.Module, layer: nn.Linear) -> None:
        super().__init__()
        self.model, self.layer = model, layer

    def forward(self, **inputs: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(last_hidden_state=self.layer(self.model(**inputs).last_hidden_state))


def test_a_graph_must_hold_the_linear_layers(tmp_path: Path) -> None:
    """Vectors of tokens are refused: the graph's own folder has no other weights that are read."""
    model, layer = made.save_biencoder(tmp_path), nn.Linear(32, 20)
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules.insert(2, {"type": "sentence_transformers.models.Dense", "path": "2_Dense"})
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "2_Dense").mkdir()
    config = {
        "in_features": 32,
        "out_features": 20,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    (tmp_path / "2_Dense/config.json").write_text(json.dumps(config))
    tensors = {f"linear.{name}": tensor.detach() for name, tensor in layer.state_dict().items()}
    save_file(tensors, tmp_path / "2_Dense/model.safetensors")
    graph = tmp_path / "onnx/model.onnx"
    made.write_onnx(Projected(model, layer), graph, "sentence_embedding")
    assert scores(opened(tmp_path, runtime="onnx")) == pytest.approx(weights_scores(tmp_path), abs=1e-5)
    made.write_onnx(model, graph, "sentence_embedding")
    with pytest.raises(ExportError, match=r"sentence_embedding has shape \(3, 32\) .* must have \(3, 20\)"):
        opened(tmp_path, export_file="onnx/model.onnx")
    made.write_onnx(model, graph, "last_hidden_state")
    with pytest.raises(ExportError, match="has no output sentence_embedding; it has last_hidden_state"):
        opened(tmp_path, export_file="onnx/model.onnx")


def test_scores_are_those_of_sentence_transformers(published: dict[str, Path]) -> None:
    short = [text for text in DOCUMENTS if len(text) < 100]
    at = [place for place, text in enumerate(DOCUMENTS) if len(text) < 100]
    cross = CrossEncoder(str(published["cross-encoder"]), device="cpu", activation_fn=torch.nn.Identity())
    wanted = cross.predict([(QUERY, text) for text in short])
    found = scores(opened(published["cross-encoder"], runtime="onnx"))
    assert [found[place] for place in at] == pytest.approx(wanted.tolist(), abs=1e-5)
    encoder = SentenceTransformer(str(published["biencoder"]), device="cpu")
    vectors = encoder.encode([QUERY, *short])
    found = scores(opened(published["biencoder"], runtime="onnx"))
    assert [found[place] for place in at] == pytest.approx((vectors[1:] @ vectors[0]).tolist(), abs=1e-5)


@pytest.mark.parametrize("name", ["cross-encoder", "biencoder"])
@pytest.mark.parametrize("weights", ["none", "unreadable"])
def test_no_weights_are_read(published: dict[str, Path], tmp_path: Path, name: str, weights: str) -> None:
    wanted = weights_scores(published[name])
    folder = made.copied(published[name], tmp_path / name)
    if weights == "unreadable":
        made.unreadable_weights(folder)
        with pytest.raises(Exception, match=r"model\.safetensors"):
            opened(folder, runtime="torch")
    else:
        (folder / "model.safetensors").unlink()
    served = opened(folder)
    assert scores(served) == pytest.approx(wanted, abs=1e-5)
    assert "parity unknown" in served.reason
    assert served.parity is None


@pytest.mark.parametrize(
    ("asked", "here", "served"),
    [
        ({}, {"avx2"}, "openvino with openvino/openvino_model.xml"),
        ({"runtime": "onnx"}, {"avx2"}, "onnx with onnx/model.onnx"),
        ({"precision": "int8"}, {"avx2"}, "onnx with onnx/model_quint8_avx2.onnx"),
        ({"precision": "int8"}, {"avx2", "avx512"}, "onnx with onnx/model_qint8_avx512.onnx"),
        (
            {"precision": "int8"},
            {"avx2", "avx512", "avx512_vnni"},
            "onnx with onnx/model_qint8_avx512_vnni.onnx",
        ),
        ({"precision": "int8"}, {"arm64"}, "onnx with onnx/model_qint8_arm64.onnx"),
        ({"export_file": "onnx/model_quint8_avx2.onnx"}, {"avx2"}, "onnx with onnx/model_quint8_avx2.onnx"),
        ({"runtime": "torch"}, {"avx2"}, "torch fp32"),
    ],
)
def test_the_choice_follows_precision_and_processor(
    published: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    asked: dict[str, str],
    here: set[str],
    served: str,
) -> None:
    for module in (choose, published_runtime):
        monkeypatch.setattr(module, "processor_instructions", lambda: frozenset(here))
    assert opened(published["cross-encoder"], **asked).reason.startswith(served + ",")


def test_a_graph_for_another_processor_is_refused_by_name(published: dict[str, Path]) -> None:
    here = published_files.processor_instructions()
    other = "onnx/model_quint8_avx2.onnx" if "arm64" in here else "onnx/model_qint8_arm64.onnx"
    with pytest.raises(PrecisionAbsent, match=r"was quantized for .* this processor has"):
        opened(published["cross-encoder"], export_file=other)


def test_unmeasured_int8_serves_if_there_is_nothing_else(published: dict[str, Path], tmp_path: Path) -> None:
    folder = made.copied(published["cross-encoder"], tmp_path / "published")
    for path in (folder / "openvino").iterdir():
        path.unlink()
    (folder / "onnx" / "model.onnx").unlink()
    assert opened(folder).reason.startswith("torch fp32,")
    (folder / "model.safetensors").unlink()
    served = opened(folder)
    assert served.runtime.capabilities().precision == "int8"
    assert np.isfinite(scores(served)).all()


def test_half_precision_is_read_from_the_graph_and_served_on_request(
    published: dict[str, Path], tmp_path: Path
) -> None:
    folder = made.copied(published["cross-encoder"], tmp_path / "published")
    half = made.in_half_precision(folder / "onnx" / "model.onnx", "model_fp16.onnx")
    served = opened(folder, precision="fp16")
    assert served.runtime.capabilities().precision == "fp32 between fp16 values"
    assert scores(served) == pytest.approx(weights_scores(folder), abs=5e-3)
    # A wrong name is not believed.
    half.rename(folder / "onnx" / "model_O3.onnx")
    assert "onnx/model_O3.onnx is in fp16, not in fp32" in opened(folder, runtime="onnx").reason
    named = opened(folder, export_file="onnx/model_O3.onnx")
    assert named.runtime.capabilities().precision == "fp32 between fp16 values"


def test_the_version_is_that_of_all_files(published: dict[str, Path], tmp_path: Path) -> None:
    before = opened(published["biencoder"], runtime="onnx").version
    folder = made.copied(published["biencoder"], tmp_path / "elsewhere")
    assert opened(folder, runtime="onnx").version == before
    weights = folder / "onnx" / "model.onnx_data"
    content = bytearray(weights.read_bytes())
    content[100] ^= 1
    weights.write_bytes(content)
    assert opened(folder, runtime="onnx").version != before
    assert opened(published["biencoder"], runtime="onnx", overrides={"window": 20}).version != before


def test_a_hub_name_is_served_from_the_cache_alone(
    published: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache's files are links to files that are named by their content."""
    cached = tmp_path / "models--acme--published"
    snapshot, blobs = cached / "snapshots" / ("0" * 40), cached / "blobs"
    blobs.mkdir(parents=True)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0" * 40)
    for path in sorted(published["biencoder"].rglob("*")):
        if path.is_file() and path.suffix != ".safetensors":
            link = snapshot / path.relative_to(published["biencoder"])
            link.parent.mkdir(parents=True, exist_ok=True)
            blob = blobs / hashlib.sha256(path.read_bytes()).hexdigest()
            blob.write_bytes(path.read_bytes())
            link.symlink_to(blob)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    served = open_ranker_runtime("acme/published", {}, runtime="onnx", placement=CPU)
    assert served.reader.spec.provenance["model"] == "acme/published"
    assert scores(served) == pytest.approx(weights_scores(published["biencoder"]), abs=1e-5)
    named = open_ranker_runtime("acme/published", {}, export_file="onnx/model.onnx", placement=CPU)
    assert named.version == served.version
    # OpenVINO follows no link out of the folder to the file with the graph's weights.
    assert named.runtime.capabilities().runtime == "onnx"
    blob = (snapshot / "onnx" / "model.onnx_data").resolve()
    content = bytearray(blob.read_bytes())
    content[100] ^= 1
    blob.write_bytes(content)
    with pytest.raises(
        ExportError, match=rf"model.onnx_data is damaged: {blob} has the SHA-256 \w+; delete it"
    ):
        open_ranker_runtime("acme/published", {}, runtime="onnx", placement=CPU)


Change = Callable[[Path], object]


def without_token_types(folder: Path) -> None:
    model = made.save_cross_encoder(folder)
    made.write_onnx(model, folder / "onnx" / "model.onnx", inputs=("input_ids", "attention_mask"))


def of_fixed_shape(folder: Path) -> None:
    made.write_onnx(made.save_cross_encoder(folder), folder / "onnx" / "model.onnx", fixed=True)


def of_more_labels(folder: Path) -> None:
    model = made.save_cross_encoder(folder, labels=2)
    made.write_onnx(model, folder / "onnx" / "model.onnx")
    made.save_cross_encoder(folder, labels=1)


def of_hidden_states(folder: Path) -> None:
    made.save_cross_encoder(folder)
    biencoder = folder / "other"
    biencoder.mkdir()
    made.write_onnx(made.save_biencoder(biencoder), folder / "onnx" / "model.onnx", "last_hidden_state")


def cut_short(folder: Path) -> None:
    graph = made.write_onnx(made.save_cross_encoder(folder), folder / "onnx" / "model.onnx")
    graph.write_bytes(graph.read_bytes()[:1000])


def without_its_weights(folder: Path) -> None:
    graph = made.write_onnx(made.save_cross_encoder(folder), folder / "onnx" / "model.onnx")
    made.with_external_weights(graph).unlink()


def with_weights_cut_short(folder: Path) -> None:
    graph = made.write_onnx(made.save_cross_encoder(folder), folder / "onnx" / "model.onnx")
    weights = made.with_external_weights(graph)
    weights.write_bytes(weights.read_bytes()[:-8])


def with_weights_elsewhere(folder: Path) -> None:
    graph = made.write_onnx(made.save_cross_encoder(folder), folder / "onnx" / "model.onnx")
    made.with_external_weights(graph)
    model = onnx.load(str(graph), load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../weights"
    graph.write_bytes(model.SerializeToString())


def of_a_later_opset(folder: Path) -> None:
    graph = made.write_onnx(made.save_cross_encoder(folder), folder / "onnx" / "model.onnx")
    model = onnx.load(str(graph))
    model.opset_import[0].version = 999
    graph.write_bytes(model.SerializeToString())


def with_an_unknown_operator(folder: Path) -> None:
    graph = made.write_onnx(made.save_cross_encoder(folder), folder / "onnx" / "model.onnx")
    model = onnx.load(str(graph))
    model.graph.node[-1].op_type = "Unheard"
    graph.write_bytes(model.SerializeToString())


def with_another_input(folder: Path) -> None:
    graph = made.write_onnx(made.save_cross_encoder(folder), folder / "onnx" / "model.onnx")
    model = onnx.load(str(graph))
    model.graph.input.append(helper.make_tensor_value_info("past_key_values", TensorProto.INT64, ["b", "s"]))
    graph.write_bytes(model.SerializeToString())


def reshaped(folder: Path, shape: list[int]) -> None:
    """Reshape the logits at the graph's end, without declaring the shape."""
    graph = made.write_onnx(made.save_cross_encoder(folder), folder / "onnx" / "model.onnx")
    model = onnx.load(str(graph))
    for node in model.graph.node:
        for place, name in enumerate(node.output):
            if name == "logits":
                node.output[place] = "logits before"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(shape), "shape"))
    model.graph.node.append(helper.make_node("Reshape", ["logits before", "shape"], ["logits"]))
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    graph.write_bytes(model.SerializeToString())


def for_batches_of_two(folder: Path) -> None:
    reshaped(folder, [2, 1])


def with_a_row_for_the_batch(folder: Path) -> None:
    reshaped(folder, [1, -1])


def of_an_unknown_type(folder: Path) -> None:
    graph = made.write_onnx(made.save_cross_encoder(folder), folder / "onnx" / "model.onnx")
    model = onnx.load(str(graph))
    model.graph.initializer[0].data_type = 99
    graph.write_bytes(model.SerializeToString())


def with_an_offset_that_is_no_number(folder: Path) -> None:
    graph = made.write_onnx(made.save_cross_encoder(folder), folder / "onnx" / "model.onnx")
    made.with_external_weights(graph)
    model = onnx.load(str(graph), load_external_data=False)
    for entry in model.graph.initializer[0].external_data:
        if entry.key == "offset":
            entry.value = "first"
    graph.write_bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (for_batches_of_two, r"onnx/model\.onnx \(opset 17\) cannot be run by onnx here: "),
        (
            with_a_row_for_the_batch,
            r"output logits has shape \(1, 3\) for inputs of .*; it must have \(3, 1\)",
        ),
        (of_an_unknown_type, r"onnx/model\.onnx is damaged: .*99"),
        (with_an_offset_that_is_no_number, r"onnx/model\.onnx is damaged: .*'first'"),
        (without_token_types, r"onnx/model\.onnx has no input token_type_ids; .* type_vocab_size 2"),
        (of_fixed_shape, r"onnx/model\.onnx: dimension 0 of input input_ids is fixed at 2; it must be free"),
        (of_more_labels, r"dimension 1 of output logits is of size 2; it must be 1, .*\(any, 1\)"),
        (of_hidden_states, r"onnx/model\.onnx has no output logits; it has last_hidden_state"),
        (cut_short, r"onnx/model\.onnx is damaged or not an ONNX model"),
        (without_its_weights, r"onnx/model\.onnx_data is missing, where .*model\.onnx has its weight"),
        (with_weights_cut_short, r"model\.onnx_data is damaged: it has \d+ bytes, and the weight"),
        (with_weights_elsewhere, r"is in '\.\./weights'; it must be in a file next to it"),
        (of_a_later_opset, r"onnx/model\.onnx is of opset 999; versions up to \d+ are known here"),
        (with_an_unknown_operator, r"onnx/model\.onnx \(opset 17\) cannot be loaded by onnx here: .*Unheard"),
        (with_another_input, r"needs the input past_key_values; only input_ids, attention_mask"),
    ],
)
def test_unservable_graphs_are_reported(tmp_path: Path, change: Change, said: str) -> None:
    change(tmp_path)
    with pytest.raises((ExportError, RuntimeAbsent), match=said):
        opened(tmp_path, export_file="onnx/model.onnx", runtime="onnx")
    # By default the weights are served, and the reason says why.
    served = opened(tmp_path)
    assert served.runtime.capabilities().runtime == "torch"
    assert "faster but not usable here: openvino with onnx/model.onnx" in served.reason


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("onnx/model_O3.onnx", r"model_O3\.onnx is missing; published graphs there: .*onnx/model\.onnx"),
        ("../model.onnx", r"export_file is '\.\./model\.onnx'; it must be an \.onnx or \.xml file inside"),
        ("model.safetensors", r"it must be an \.onnx or \.xml file"),
    ],
)
def test_a_file_that_cannot_be_named(published: dict[str, Path], name: str, said: str) -> None:
    with pytest.raises(ExportError, match=said):
        opened(published["cross-encoder"], export_file=name)


@pytest.mark.parametrize("place", ["onnx/model.onnx", "openvino/openvino_model.xml"])
@pytest.mark.parametrize("put", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("nowhere")])
def test_a_graph_that_is_no_file_is_reported_without_a_wait(
    tmp_path: Path, place: str, put: Callable[[Path], Any]
) -> None:
    made.save_cross_encoder(tmp_path)
    (tmp_path / place).parent.mkdir()
    put(tmp_path / place)
    served = opened(tmp_path)
    assert served.runtime.capabilities().runtime == "torch"
    assert f"{place} is not a file, or is a broken link" in served.reason


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 133466304\n"


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_file_that_git_lfs_left_out_is_named(published: dict[str, Path], tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(published["cross-encoder"], tmp_path / "clone")
    (folder / name).write_text(POINTER)
    with pytest.raises(
        SourceError, match=rf"{name} is a pointer of Git LFS.*; run git lfs pull in {folder}$"
    ):
        opened(folder)


def test_graphs_serve_without_weights_and_weights_without_graphs_that_git_lfs_left_out(
    published: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(published["pooled"], tmp_path / "clone")
    graph, weights = folder / "onnx" / "model.onnx", folder / "model.safetensors"
    kept = weights.read_bytes()
    weights.write_text(POINTER)
    assert opened(folder).runtime.capabilities().runtime != "torch"
    graph.write_text(POINTER)
    with pytest.raises(WeightsError, match=r"model.safetensors is a pointer of Git LFS"):
        opened(folder)
    weights.unlink()
    with pytest.raises(
        WeightsError, match=r"model.safetensors is missing; .*model.onnx is a pointer of Git LFS"
    ):
        opened(folder)
    weights.write_bytes(kept)
    assert opened(folder).runtime.capabilities().runtime == "torch"
    with pytest.raises(ExportError, match=r"model.onnx is a pointer of Git LFS"):
        opened(folder, export_file="onnx/model.onnx")


def test_graphs_whose_names_say_no_precision_are_offered_where_weights_are_missing(
    published: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(published["pooled"], tmp_path / "quantized")
    (folder / "model.safetensors").unlink()
    (folder / "onnx" / "model.onnx").rename(folder / "onnx" / "model_q4.onnx")
    with pytest.raises(
        WeightsError, match=r"\(onnx/model_q4.onnx\): .*; name one of its graphs by export_file$"
    ):
        opened(folder)
    assert opened(folder, export_file="onnx/model_q4.onnx").runtime.capabilities().runtime != "torch"


def test_more_dimensions_than_there_are_cannot_be_kept(published: dict[str, Path]) -> None:
    for asked in ({"runtime": "onnx"}, {"runtime": "torch"}, {}):
        with pytest.raises(SpecError, match="truncate_dim is 33; it must be at most the 32 dimensions"):
            opened(published["biencoder"], overrides={"truncate_dim": 33}, **asked)


def test_torch_serves_no_file(published: dict[str, Path]) -> None:
    with pytest.raises(RuntimeAbsent, match=r"export_file names the graph onnx/model\.onnx"):
        opened(published["cross-encoder"], runtime="torch", export_file="onnx/model.onnx")


def test_openvino_without_its_weights(published: dict[str, Path], tmp_path: Path) -> None:
    folder = made.copied(published["cross-encoder"], tmp_path / "published")
    (folder / "openvino" / "openvino_model.bin").unlink()
    with pytest.raises(ExportError, match=r"openvino_model\.bin is missing"):
        opened(folder, export_file="openvino/openvino_model.xml")


def test_names_say_precisions(tmp_path: Path) -> None:
    made.save_cross_encoder(tmp_path)
    names = {
        "onnx/model_qint8_avx512_vnni.onnx": "int8",
        "onnx/model_qint8_avx512.onnx": "int8",
        "onnx/model_quint8_avx2.onnx": "int8",
        "onnx/model_quantized.onnx": "int8",
        "onnx/model_O3.onnx": "fp32",
        "onnx/model_O1.onnx": "fp32",
        "onnx/model.onnx": "fp32",
        "onnx/model_O4.onnx": "fp16",
        "onnx/model_fp16.onnx": "fp16",
        "openvino/openvino_model_qint8_quantized.xml": "int8",
        "openvino/openvino_model.xml": "fp32",
        "model.onnx": "fp32",
    }
    for name in (
        *names,
        "onnx/model_q4f16.onnx",
        "onnx/decoder.onnx",
        "onnx/tokenizer.xml",
        "onnx/model.txt",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = published_files.find_published(ModelFiles.find(locate(tmp_path)))
    assert {each.file: each.precision for each in found} == names
    order = [each.file for each in found if each.precision == "int8" and each.format == "onnx"]
    assert order[:3] == [
        "onnx/model_qint8_avx512_vnni.onnx",
        "onnx/model_qint8_avx512.onnx",
        "onnx/model_quint8_avx2.onnx",
    ]
    assert [each.file for each in found if each.precision == "fp32"][:2] == [
        "onnx/model_O3.onnx",
        "onnx/model_O1.onnx",
    ]


@pytest.mark.parametrize("file", ["onnx/model.onnx", "openvino/openvino_model.xml"])
def test_graphs_of_a_language_model_are_refused_and_its_weights_served(
    published: dict[str, Path], tmp_path: Path, file: str
) -> None:
    """Their logits are those of all tokens at all positions."""
    folder = make_language_model(tmp_path / "lm", "qwen3")
    for place in ("onnx", "openvino"):
        shutil.copytree(published["cross-encoder"] / place, folder / place)
    with pytest.raises(ExportError) as refused:
        opened(folder, export_file=file)
    message = str(refused.value).replace(str(folder), "")
    assert message == (
        f"export_file is '{file}', and  is of kind yes-no; published graphs of a cross-encoder or biencoder "
        "are served. Leave export_file out to serve the weights, of which farrank export makes graphs"
    )
    assert len(message) <= 300
    served = opened(folder)
    assert served.runtime.capabilities().runtime == "torch"
    assert scores(served) == pytest.approx(weights_scores(folder), abs=1e-5)
