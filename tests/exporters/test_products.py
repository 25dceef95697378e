"""The products that int8 leaves as they are, found in graphs of several activations."""

import json
import shutil
from pathlib import Path
from typing import Any

import onnx
from transformers import BertConfig
from transformers.activations import ACT2FN

from farrank_exporters.products import nodes_apart
from farrank_exporters.trace import trace_encoder
from farrank_rankers.files.untrained import new_ranker

LAYERS = 2

# Activations differ in their graphs: one operator, or several around erf, tanh or a sigmoid.
ACTIVATIONS = ("gelu", "gelu_new", "quick_gelu", "relu", "silu", "mish")


def test_each_feed_forward_blocks_second_product_is_found(tiny_backbone: Path, tmp_path: Path) -> None:
    """Each layer has another activation."""
    backbone = tmp_path / "backbone"
    shutil.copytree(tiny_backbone, backbone)
    config = json.loads((backbone / "config.json").read_text())
    (backbone / "config.json").write_text(json.dumps(config | {"num_hidden_layers": len(ACTIVATIONS)}))
    ranker = new_ranker("maxp", backbone, pretrained=False)
    layers: Any = ranker.encoder.backbone
    for layer, activation in zip(layers.encoder.layer, ACTIVATIONS, strict=True):
        layer.intermediate.intermediate_act_fn = ACT2FN[activation]
    trace_encoder(ranker, tmp_path)
    graph = onnx.load(tmp_path / "encoder.onnx").graph
    found = nodes_apart(graph).after_activations
    assert len(found) == len(ACTIVATIONS)
    nodes = {node.name: node for node in graph.node}
    widths = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    producers = {output: node for node in graph.node for output in node.output}
    for name in found:
        weight = nodes[name].input[1]
        shape = widths.get(weight) or widths[producers[weight].input[0]]
        assert sorted(shape) == [32, 64]  # wide to narrow, unlike any product of attention


def test_gated_feed_forward_blocks_are_found_too(tiny_backbone: Path, tmp_path: Path) -> None:
    backbone = tmp_path / "backbone"
    shutil.copytree(tiny_backbone, backbone)
    values = json.loads((backbone / "config.json").read_text())
    config = BertConfig(**values).to_dict() | {
        "architectures": ["JinaBertForMaskedLM"],
        "auto_map": {"AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"},
        "position_embedding_type": "alibi",
        "feed_forward_type": "geglu",
    }
    (backbone / "config.json").write_text(json.dumps(config))
    trace_encoder(new_ranker("maxp", backbone, pretrained=False), tmp_path)
    assert len(nodes_apart(onnx.load(tmp_path / "encoder.onnx").graph).after_activations) == LAYERS
