"""Plain graphs: a model with its inputs and output as in transformers, traced by torch.

Other libraries load them as they are. A ranker's encoder adds small graphs before and after.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import onnx
import torch
from torch import Tensor, nn

from farrank_exporters.trace import ENCODER_INPUTS, ENCODER_OUTPUTS, encoder_example, trace_module
from farrank_rankers.backbone_facts import STATIC, own_backbone
from farrank_rankers.backbones.forms import dense_attention
from farrank_rankers.encoder import Encoder
from farrank_rankers.errors import ExportError
from farrank_rankers.exports.manifest import Graph
from farrank_rankers.families.biencoder import TextEncoder, finished, pooled
from farrank_rankers.families.cross_encoder import LogitEncoder, relevance
from farrank_rankers.family import BiEncoderOptions
from farrank_rankers.features import PaddedFeatures
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import Role

PlainOutput = Literal["logits", "last_hidden_state"]


def why_not_plain(ranker: Ranker) -> str | None:
    """Name the part of a ranker's encoder that a plain graph cannot hold; None if it holds everything."""
    encoder, architecture = ranker.encoder, ranker.encoder.facts.architecture
    if type(encoder) not in (LogitEncoder, TextEncoder):
        return f"a {ranker.spec.family} is neither a classifier of transformers nor a pooled bi-encoder"
    if encoder.head is not None:
        return "it has modules of sentence-transformers behind transformers' model"
    if own_backbone(ranker.backbone_config) is not None:
        return f"transformers itself lacks {architecture}"
    if architecture == STATIC:
        return "static embeddings are looked up, not computed"
    if encoder.facts.known.own_attention:
        return f"the attention of {architecture} depends on the query or on the batch"
    if encoder.position_step > 1:
        return f"position_step is {encoder.position_step}, but plain graphs count positions one by one"
    if ranker.spec.pad_query_to and encoder.facts.first_position:
        return f"pad_query_to is {ranker.spec.pad_query_to}, but {architecture} gives padding no positions"
    return None


def plain_output(ranker: Ranker) -> PlainOutput:
    """Name the model's output that a ranker reads: a cross-encoder logits, a bi-encoder token vectors."""
    return "logits" if isinstance(ranker.encoder, LogitEncoder) else "last_hidden_state"


class PlainGraph(nn.Module):
    """A model as transformers calls it, with one output."""

    def __init__(self, encoder: Encoder, output: PlainOutput) -> None:
        super().__init__()
        self.backbone, self.output = encoder.backbone, output

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Shapes: (P, L) each -> logits (P, labels) or token vectors (P, L, H)."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        output: Tensor = self.backbone(**inputs)[self.output]
        return output


def trace_plain(ranker: Ranker, path: Path) -> Graph:
    """Trace a ranker's model, which must be plain and on the CPU, in fp32.

    Inputs: input_ids, attention_mask and, if the model has them, token_type_ids, int64, (P, L) each.
    Output: logits (P, labels) or last_hidden_state (P, L, H).
    Raises: ExportError as `trace_ranker` does.
    """
    ranker.eval()
    output = plain_output(ranker)
    example = encoder_example(ranker)
    given = {"input_ids": example["input_ids"], "attention_mask": _mask(example["roles"])}
    if ranker.encoder.takes_token_types:
        given["token_type_ids"] = example["token_type_ids"]
    # A bi-encoder's output is the vectors of all tokens, even if the ranker reads only one.
    unread = ranker.encoder.without_unread() if output == "logits" else nullcontext()
    with dense_attention(ranker.encoder.backbone), unread:
        return trace_module(PlainGraph(ranker.encoder, output), given, (output,), path)


class _Before(nn.Module):
    def forward(self, roles: Tensor) -> Tensor:
        return _mask(roles)


class _Behind(nn.Module):
    """The ranker's own computation on its model's output."""

    def __init__(self, options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, output: Tensor, its_roles: Tensor) -> Tensor:
        """Shapes: logits (P, labels) or token vectors (P, L, H), roles (P, L) -> (P, F)."""
        if isinstance(self.options, BiEncoderOptions):
            vectors = pooled(output, PaddedFeatures(its_roles), self.options)
            return finished(vectors, self.options).vectors
        return relevance(output).vectors.clone()


def _mask(roles: Tensor) -> Tensor:
    return (roles != Role.PADDING).to(roles.dtype)


def encoder_around(plain: Path, ranker: Ranker) -> Graph:
    """Turn a plain graph into the ranker's encoder, in the same file; weights in a separate file stay there.

    Raises: ExportError if the plain graph has another opset than ours.
    """
    whole = onnx.load(plain, load_external_data=False)
    config: Any = ranker.encoder.backbone.config
    roles = encoder_example(ranker)["roles"]  # (P, L)
    if plain_output(ranker) == "logits":
        output = torch.zeros(len(roles), config.num_labels)
    else:
        output = torch.zeros(*roles.shape, config.hidden_size)
    before = _traced_beside(plain, "before", _Before(), {"roles": roles}, "attention_mask")
    given = {"output": output, "its_roles": roles}
    behind = _traced_beside(plain, "behind", _Behind(ranker.spec.options), given, "vectors")
    versions = {each.domain: each.version for each in whole.opset_import}
    for part in (before, behind):
        for each in part.opset_import:
            if versions.setdefault(each.domain, each.version) != each.version:
                raise ExportError(
                    f"{plain.name} is of opset {versions[each.domain]}; it must be of {each.version}"
                )
    graph = whole.graph
    _read_instead(behind, {"output": graph.output[0].name, "its_roles": "roles"})
    nodes = [*before.graph.node, *graph.node, *behind.graph.node]
    inputs = [each for each in graph.input if each.name != "attention_mask"]
    inputs.insert(1, before.graph.input[0])
    constants = [*before.graph.initializer, *graph.initializer, *behind.graph.initializer]
    known = [*graph.value_info, graph.output[0]]
    joined = onnx.helper.make_graph(
        nodes, "encoder", inputs, list(behind.graph.output), constants, value_info=known
    )
    graph.CopyFrom(joined)
    whole.ir_version = max(each.ir_version for each in (before, whole, behind))
    functions = {each.name for each in whole.functions}
    for part in (before, behind):
        whole.functions.extend(each for each in part.functions if each.name not in functions)
    onnx.save_model(whole, plain)
    names = tuple(each.name for each in inputs)
    return Graph(plain.name, tuple(name for name in ENCODER_INPUTS if name in names), ENCODER_OUTPUTS[:1])


def _traced_beside(
    plain: Path, name: str, module: nn.Module, example: Mapping[str, Tensor], output: str
) -> onnx.ModelProto:
    """Trace a small module; all its values but inputs and output get names that no other graph has."""
    path = plain.with_name(f"{name}.onnx")
    trace_module(module, example, (output,), path, fixed=("output",))
    traced = onnx.load(path)
    path.unlink()
    return onnx.compose.add_prefix(traced, f"{name}/", rename_inputs=False, rename_outputs=False)


def _read_instead(model: onnx.ModelProto, names: dict[str, str]) -> None:
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = names.get(name, name)
