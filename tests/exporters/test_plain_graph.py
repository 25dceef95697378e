"""Plain graphs of real architectures at tiny sizes, compared with the models themselves."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification

from farrank_exporters.plain_graph import encoder_around, plain_output, trace_plain, why_not_plain
from farrank_exporters.trace import TraceableEncoder, encoder_example
from farrank_rankers.files.open import open_ranker
from farrank_rankers.ranker import Ranker
from support import published_exports as made
from support.classifiers import CROSS_ENCODERS, cross_encoder

TEXTS = (
    ("search query", "the long document ranks chunks"),
    ("model", "windows slide over text " * 9),
    ("a", ""),
)


def batch_of(ranker: Ranker) -> dict[str, torch.Tensor]:
    """Frame texts of three lengths, one of them empty."""
    reader = ranker.reader
    inputs = []
    for query, text in TEXTS:
        asked = reader.read_query(query) if ranker.spec.plan == "pair" else None
        inputs.append(reader.chunk_input(asked, reader.split(reader.read_document(text), max_chunks=1)[0]))
    return dict(zip(("input_ids", "roles", "token_type_ids"), ranker.tensors(inputs), strict=True))


def run(graph: Path, given: dict[str, torch.Tensor]) -> np.ndarray[Any, Any]:
    session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    names = {each.name for each in session.get_inputs()}
    (output,) = session.run(None, {name: tensor.numpy() for name, tensor in given.items() if name in names})
    return np.asarray(output)


def of_transformers(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    mask = (batch["roles"] != 0).to(torch.int64)
    return {
        "input_ids": batch["input_ids"],
        "attention_mask": mask,
        "token_type_ids": batch["token_type_ids"],
    }


@pytest.mark.parametrize("kind", CROSS_ENCODERS)
def test_logits_are_those_of_transformers_and_the_encoder_around_them_is_the_rankers(
    kind: str, tmp_path: Path
) -> None:
    ranker = cross_encoder(kind, tmp_path, labels=2 if kind == "electra" else 1)
    assert why_not_plain(ranker) is None
    path = tmp_path / "encoder.onnx"
    graph = trace_plain(ranker, path)
    batch = batch_of(ranker)
    given = of_transformers(batch)

    model = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        expected = model(**{name: given[name] for name in graph.inputs}).logits
        features = TraceableEncoder(ranker.encoder)(**batch)[0]
    assert graph.outputs == ("logits",)
    np.testing.assert_allclose(run(path, given), expected, rtol=0, atol=1e-5)

    around = encoder_around(path, ranker)
    onnx.checker.check_model(str(path))
    assert around.outputs == ("vectors",)
    assert set(around.inputs) <= {"input_ids", "roles", "token_type_ids"}
    np.testing.assert_allclose(run(path, batch), features, rtol=0, atol=1e-5)
    # The logit of a single label, or the log-odds of two.
    odds = expected if expected.shape[1] == 1 else expected[:, 1:] - expected[:, :1]
    np.testing.assert_allclose(run(path, batch), odds, rtol=0, atol=1e-5)


def test_vectors_of_all_tokens_and_the_pooling_around_them(tmp_path: Path) -> None:
    plain = tmp_path / "plain.onnx"
    for pooling in ("mean", "cls"):
        folder = tmp_path / pooling
        folder.mkdir()
        made.save_biencoder(folder, pooling)
        ranker = open_ranker(folder)
        assert plain_output(ranker) == "last_hidden_state"
        if not plain.exists():  # pooling is no part of it
            trace_plain(ranker, plain)
        batch = batch_of(ranker)
        given = of_transformers(batch)
        with torch.no_grad():
            expected = AutoModel.from_pretrained(folder).eval()(**given).last_hidden_state
            features = TraceableEncoder(ranker.encoder)(**batch)[0]
        there = given["attention_mask"].bool().numpy()
        np.testing.assert_allclose(run(plain, given)[there], expected[there], rtol=0, atol=1e-5)

        path = Path(shutil.copy(plain, folder / "encoder.onnx"))
        encoder_around(path, ranker)
        np.testing.assert_allclose(run(path, batch), features, rtol=0, atol=1e-5)
        assert np.linalg.norm(run(path, batch), axis=1) == pytest.approx(1, abs=1e-5)


def test_weights_in_a_file_of_their_own_stay_there(tmp_path: Path) -> None:
    made.save_cross_encoder(tmp_path)
    ranker = open_ranker(tmp_path)
    path = tmp_path / "encoder.onnx"
    trace_plain(ranker, path)
    data = made.with_external_weights(path)
    before, outside = data.read_bytes(), onnx.load(path, load_external_data=False).graph.initializer
    assert all(each.data_location == each.EXTERNAL for each in outside)
    encoder_around(path, ranker)
    assert data.read_bytes() == before
    kept = onnx.load(path, load_external_data=False).graph.initializer
    assert sum(each.data_location == each.EXTERNAL for each in kept) == len(outside)
    with torch.no_grad():
        expected = TraceableEncoder(ranker.encoder)(**encoder_example(ranker))[0]
    np.testing.assert_allclose(run(path, encoder_example(ranker)), expected, rtol=0, atol=1e-5)


def test_rankers_that_are_not_plain_are_refused_with_the_reason(
    tiny_rankers: dict[str, Path], tmp_path: Path
) -> None:
    plain = {family for family in tiny_rankers if why_not_plain(open_ranker(tiny_rankers[family])) is None}
    assert {"cross-encoder", "biencoder"} <= plain
    reason = why_not_plain(open_ranker(tiny_rankers["parade-attn"]))
    assert str(reason).startswith("a parade-attn is neither a classifier of transformers")
    stepped = open_ranker(tiny_rankers["biencoder"])
    stepped.encoder.position_step = 2
    assert "position_step is 2" in str(why_not_plain(stepped))
    padded = cross_encoder("xlm-roberta", tmp_path).reader
    assert padded.backbone.first_position
    reason = why_not_plain(open_ranker(tmp_path, pad_query_to=32))
    assert reason == "pad_query_to is 32, but xlm-roberta gives padding no positions"
