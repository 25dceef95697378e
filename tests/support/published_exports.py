"""Published models with graphs next to their configuration, in the layouts of other exporters."""

import json
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from support.tiny_tokenizers import save_tokenizer, wordpiece

TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    # Wide enough that scores differ by far more than rounding.
    "initializer_range": 0.25,
    "max_position_embeddings": 128,
}


def save_cross_encoder(folder: Path, labels: int = 1, seed: int = 7) -> nn.Module:
    """Write a tiny BERT with a classification head, as `save_pretrained` does."""
    tokenizer = save_tokenizer(wordpiece(), folder, "bert")
    config = AutoConfig.for_model(
        "bert", **TINY, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, num_labels=labels
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: nn.Module = AutoModelForSequenceClassification.from_config(
            config, attn_implementation="eager"
        ).eval()
    model.save_pretrained(folder)  # type: ignore[operator]  # transformers has no types
    return model


def save_biencoder(folder: Path, pooling: str = "mean", seed: int = 8) -> nn.Module:
    """Write a tiny BERT as sentence-transformers does: with modules.json, pooled and normalized."""
    tokenizer = save_tokenizer(wordpiece(), folder, "bert")
    config = AutoConfig.for_model(
        "bert", **TINY, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: nn.Module = AutoModel.from_config(config, attn_implementation="eager").eval()
    model.save_pretrained(folder)  # type: ignore[operator]  # transformers has no types
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for place, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{mode}": mode.startswith(pooling) for mode in ("cls_token", "mean_tokens")}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32} | modes))
    return model


class Named(nn.Module):
    """A model called with its inputs in a fixed order, as exporters call it; one output."""

    def __init__(self, model: nn.Module, inputs: Sequence[str], output: str) -> None:
        super().__init__()
        self.model, self.inputs, self.output = model, inputs, output

    def forward(self, *given: Tensor) -> Tensor:
        outputs = self.model(**dict(zip(self.inputs, given, strict=True)))
        if self.output == "logits":
            logits: Tensor = outputs.logits
            return logits
        hidden: Tensor = outputs.last_hidden_state
        if self.output == "sentence_embedding":
            mask = given[1][:, :, None].to(hidden.dtype)
            pooled = (hidden * mask).sum(1) / mask.sum(1)
            return torch.nn.functional.normalize(pooled, dim=-1)
        return hidden


BERT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def write_onnx(
    model: nn.Module,
    path: Path,
    output: str = "logits",
    inputs: Sequence[str] = BERT_INPUTS,
    *,
    fixed: bool = False,
    opset: int = 17,
) -> Path:
    """Write a graph with optimum's names of inputs, outputs and axes, and with its exporter."""
    path.parent.mkdir(parents=True, exist_ok=True)
    example = tuple(torch.ones(2, 9, dtype=torch.int64) for _ in inputs)
    axes: dict[str, Any] = {name: {0: "batch_size", 1: "sequence_length"} for name in inputs}
    of_tokens = output in ("last_hidden_state", "token_embeddings")
    axes[output] = {0: "batch_size", 1: "sequence_length"} if of_tokens else {0: "batch_size"}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # as optimum sets the exporter
        torch.onnx.export(
            Named(model, inputs, output),
            example,
            str(path),
            input_names=list(inputs),
            output_names=[output],
            dynamic_axes=None if fixed else axes,
            opset_version=opset,
            dynamo=False,
        )
    return path


def quantized(graph: Path, name: str) -> Path:
    """Write a quantized copy of a graph, quantized with ONNX Runtime as sentence-transformers does it."""
    path = graph.with_name(name)
    kind = QuantType.QUInt8 if "quint8" in name else QuantType.QInt8
    quantize_dynamic(str(graph), str(path), weight_type=kind, per_channel=False)
    return path


def with_external_weights(graph: Path) -> Path:
    """Move a graph's weights into a separate file, as exporters do above 2 GB."""
    model = onnx.load(str(graph))
    onnx.save_model(
        model,
        str(graph),
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location=f"{graph.name}_data",
        size_threshold=0,
    )
    return graph.with_name(f"{graph.name}_data")


def write_openvino(
    graph: Path, folder: Path, name: str = "openvino_model.xml", *, int8: bool = False
) -> Path:
    """Convert an ONNX graph, named and saved as by optimum-intel. int8 is quantized with NNCF, as there."""
    import openvino

    folder.mkdir(parents=True, exist_ok=True)
    model = openvino.convert_model(str(graph))
    if int8:
        import nncf
        import numpy as np

        names = [port.get_any_name() for port in model.inputs]
        drawn = np.random.default_rng(0)
        examples = [{each: drawn.integers(1, 2, size=(2, 9)) for each in names} for _ in range(4)]
        model = nncf.quantize(
            model, nncf.Dataset(examples), model_type=nncf.ModelType.TRANSFORMER, subset_size=4
        )
    openvino.save_model(model, str(folder / name), compress_to_fp16=False)
    return folder / name


def unreadable_weights(folder: Path) -> None:
    """Replace the weights by a file that cannot be read."""
    (folder / "model.safetensors").write_bytes(b"\xff" * 64)


def other_weights(folder: Path) -> None:
    """Change the weights, so that the graphs belong to other weights."""
    tensors = {name: tensor * 1.5 for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def copied(folder: Path, to: Path) -> Path:
    """Copy a published model, to change it."""
    return Path(shutil.copytree(folder, to))


def in_half_precision(graph: Path, name: str) -> Path:
    """Write a copy of a graph with weights, arithmetic and output in fp16."""
    path = graph.with_name(name)
    model = onnx.load(str(graph))
    double, half = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16
    for tensor in [*model.graph.initializer, *(a.t for node in model.graph.node for a in node.attribute)]:
        if tensor.data_type == double:
            values = onnx.numpy_helper.to_array(tensor)
            lowest = -65504.0  # the value that masks add
            name_of = tensor.name
            tensor.CopyFrom(onnx.numpy_helper.from_array(values.clip(min=lowest).astype("float16"), name_of))
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.i == double:
                attribute.i = half
    for output in model.graph.output:
        output.type.tensor_type.elem_type = half
    del model.graph.value_info[:]
    path.write_bytes(model.SerializeToString())
    return path
