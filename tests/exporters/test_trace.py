"""Graphs compared with the modules that were traced, at other sizes than the examples'."""

import errno
import logging
import os
from collections.abc import Mapping
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor

from farrank_exporters.trace import OPSET, AggregatorGraph, TraceableEncoder, quiet, trace_ranker
from farrank_rankers.errors import ExportError
from farrank_rankers.features import Features, batched, stacked
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import Chunk, Role, collate
from support.exported_rankers import KINDS, TracedRanker, text

TracedRankers = Mapping[str, TracedRanker]

# Words of each chunk of each document: single, empty, more and longer chunks than the traced ones.
BATCHES = [[[6]], [[0, 4], [30]], [[90, 3, 40, 8, 1, 2, 7], [5], [150, 20]]]


def run(folder: Any, name: str, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(
        str(folder / f"{name}.onnx"), options, providers=["CPUExecutionProvider"]
    )
    taken = {each.name: inputs[each.name].numpy() for each in session.get_inputs()}
    return [torch.from_numpy(output) for output in session.run(None, taken)]


def encoder_inputs(ranker: Ranker, batch: list[list[int]]) -> dict[str, Tensor]:
    reader = ranker.reader
    asked = reader.read_query("a query") if ranker.spec.plan == "pair" else None
    inputs = [
        reader.chunk_input(asked, Chunk(0, reader.tokenizer.ids(text(words, words))[:140], 0, 0))
        for document in batch
        for words in document
    ]
    arrays = collate(inputs, reader.pad_id)
    return dict(zip(("input_ids", "roles", "token_type_ids"), map(torch.from_numpy, arrays), strict=True))


def aggregator_inputs(ranker: Ranker, batch: list[list[int]]) -> dict[str, Tensor]:
    """Return the encoder's features of the chunks, grouped by document."""
    reader = ranker.reader
    with torch.no_grad():
        rows = iter(ranker.encoder(*encoder_inputs(ranker, batch).values()).rows())
        features, chunk_mask = batched([stacked([next(rows) for _ in words]) for words in batch])
        values = {"vectors": features.vectors, "chunk_mask": chunk_mask, "roles": features.roles}
        if ranker.spec.plan == "dual":
            asked = [reader.query_input(reader.read_query(text(2 + row, row))) for row in range(len(batch))]
            encoded = ranker.encoder(*map(torch.from_numpy, collate(asked, reader.pad_id)))
            queries: Features = stacked(encoded.rows())
            values |= {"query_vectors": queries.vectors, "query_roles": queries.roles}
    return {name: value for name, value in values.items() if value is not None}


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("kind", KINDS)
def test_an_encoder_is_the_same_at_every_size(
    traced_rankers: TracedRankers, kind: str, batch: list[list[int]]
) -> None:
    traced = traced_rankers[kind]
    inputs = encoder_inputs(traced.ranker, batch)
    with torch.no_grad():
        expected = TraceableEncoder(traced.ranker.encoder)(**inputs)
    found = run(traced.folder, "encoder", inputs)
    assert len(found) == len(expected) == len(traced.graphs["encoder"].outputs)
    real: Any = ...
    if len(found) > 1:
        assert torch.equal(found[1], expected[1])
        real = expected[1] != Role.PADDING
    torch.testing.assert_close(found[0][real], expected[0][real], rtol=0, atol=1e-5)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("kind", KINDS)
def test_an_aggregator_is_the_same_at_every_size(
    traced_rankers: TracedRankers, kind: str, batch: list[list[int]]
) -> None:
    traced = traced_rankers[kind]
    inputs = aggregator_inputs(traced.ranker, batch)
    with torch.no_grad():
        expected = AggregatorGraph(traced.ranker.aggregator)(**inputs)
    found = run(traced.folder, "aggregator", inputs)
    for got, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


def test_inputs_and_outputs_are_named(traced_rankers: TracedRankers) -> None:
    graphs = traced_rankers["parade-transf-pretr-lateir"].graphs
    assert graphs["encoder"].inputs == ("input_ids", "roles", "token_type_ids")
    assert graphs["encoder"].outputs == ("vectors", "token_roles")
    assert graphs["aggregator"].inputs == ("vectors", "chunk_mask", "roles", "query_vectors", "query_roles")
    assert graphs["aggregator"].outputs == ("scores", "chunk_scores")


def test_fp16_is_the_encoders_weights_alone(traced_rankers: TracedRankers) -> None:
    half = traced_rankers["maxp-fp16"]
    kinds = {}
    for name in ("encoder", "aggregator"):
        model = onnx.load(half.folder / f"{name}.onnx")
        assert [each.version for each in model.opset_import if each.domain == ""] == [OPSET]
        kinds[name] = {
            each.data_type for each in model.graph.initializer if len(each.dims) > 1 and each.data_type != 7
        }
    float16, float32 = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
    assert (kinds["encoder"], kinds["aggregator"]) == ({float16}, {float32})
    inputs = encoder_inputs(half.ranker, BATCHES[2])
    (found,) = run(half.folder, "encoder", inputs)
    with torch.no_grad():
        (expected,) = TraceableEncoder(half.ranker.encoder)(**inputs)
    assert found.dtype == torch.float32
    assert 0 < float((found - expected).abs().max()) < 1e-2
    # The ranker itself has not changed.
    assert {each.dtype for each in half.ranker.parameters()} == {torch.float32}


def test_a_full_disk_is_not_laid_to_the_model(
    traced_rankers: TracedRankers, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(torch.onnx, "export", full)
    with pytest.raises(ExportError, match=r"encoder\.onnx cannot be written: No space left on device"):
        trace_ranker(traced_rankers["maxp"].ranker, tmp_path)


def test_a_model_that_looks_at_values_is_refused_with_its_half(
    traced_rankers: TracedRankers, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranker = traced_rankers["maxp"].ranker

    def undecided(*tensors: Tensor) -> Features:
        return Features(tensors[int(tensors[0].sum()) % 2][:, :1].float())

    monkeypatch.setattr(ranker.encoder, "forward", undecided)
    with pytest.raises(ExportError, match="encoder: the model cannot be traced: "):
        trace_ranker(ranker, tmp_path)


def test_others_are_not_silenced(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), quiet("torch.onnx"):
        logging.warning("of a library without a logger")
        for name in ("torch.onnx", "torch.onnx._internal", "farrank"):
            logging.getLogger(name).warning("of %s", name)
    assert caplog.messages == ["of farrank"]
