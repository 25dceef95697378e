"""The runtime of a published graph: its inputs, the output that is read, and torch after it.

The steps after the encoder of a cross-encoder or bi-encoder have no weights: the families' own code splits
logits, pools tokens and aggregates chunks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from farrank_rankers.aggregate import Aggregator
from farrank_rankers.errors import ExportError, SpecError
from farrank_rankers.exports.published_files import PublishedFile, processor_instructions
from farrank_rankers.families.biencoder import SimilarityAggregator, check_truncation, finished, pooled
from farrank_rankers.families.cross_encoder import LogitAggregator, relevance
from farrank_rankers.family import BiEncoderOptions, EvidenceKind
from farrank_rankers.features import Features, PaddedFeatures
from farrank_rankers.files.open import Overrides, reader_and_files
from farrank_rankers.reader import Reader
from farrank_rankers.spec import content_version, encodings_version
from farrank_rankers.tokens import Role, collate
from farrank_runtimes.exported_runtime import ExportedRuntime
from farrank_runtimes.graph_files import BegunGraph, EncoderGraph, GraphFiles, RunGraph
from farrank_runtimes.published_graph import PublishedGraph, Shape, Value, read_graph
from farrank_runtimes.runtime import (
    DeviceAbsent,
    DeviceLost,
    OutOfMemory,
    Placement,
    Precision,
    PrecisionAbsent,
    Runtime,
    RuntimeAbsent,
)
from farrank_runtimes.runtime_table import RUNTIMES, PublishedRuntime

# The inputs that a graph may have. Any other would have to be guessed.
INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
# The output to read is the first of these. Vectors of tokens are pooled as the model's own files say.
_LOGITS = ("logits",)
_VECTORS = ("token_embeddings", "last_hidden_state", "sentence_embedding")


@dataclass(frozen=True, slots=True, eq=False)
class OpenedPublished:
    """A published graph with its ranker's reader and versions, which are those of its files.

    `output` is the output to read, of `shape`, in which None means any size: (P, labels), (P, L, H) or (P,
    H). `measured_as` is the version without overrides, under which measurements of the graph are stored.
    """

    graph: PublishedGraph
    reader: Reader
    config: Mapping[str, Any]
    version: str
    encodings_version: str
    measured_as: str
    output: str
    shape: Shape

    def aggregator(self) -> Aggregator[Any]:
        """Build the aggregator."""
        kind = SimilarityAggregator if self.reader.spec.plan == "dual" else LogitAggregator
        return kind(self.reader.spec, self.config).eval()

    @property
    def evidence(self) -> EvidenceKind:
        """The meaning of chunk scores."""
        return self.aggregator().evidence


def open_published(file: PublishedFile, source: str, overrides: Overrides) -> OpenedPublished:
    """Read and check a published graph, each of its files once; the model's weights are not read.

    Raises: ExportError naming the file, the problem and what was expected; SpecError if an override does not
    fit the graph; RuntimeAbsent if no installed package reads it.
    """
    reader, files = reader_and_files(source, overrides)
    made_for, _ = reader_and_files(
        source, Overrides(revision=overrides.get("revision"), download=overrides.get("download") or False)
    )
    graph = read_graph(file)
    output, shape = _checked(graph, reader, files.config)
    digest = graph.digest
    version, measured_as = (
        content_version(each.spec, each.tokenizer.files, files.config, digest) for each in (reader, made_for)
    )
    encodings = encodings_version(reader.spec, reader.tokenizer.files, files.config, digest)
    return OpenedPublished(graph, reader, files.config, version, encodings, measured_as, output, shape)


def _checked(graph: PublishedGraph, reader: Reader, config: Mapping[str, Any]) -> tuple[str, Shape]:
    """Compare a graph with the ranker's inputs and outputs; return the output to read, and its shape."""
    path, spec = graph.file.path, reader.spec
    if reader.backbone.known.own_attention:
        raise ExportError(
            f"{path}: the attention of {reader.backbone.architecture} depends on the query or on the batch, "
            "and a published graph has one fixed; serve the model with torch, or export it by farrank export"
        )
    for name in ("input_ids", "attention_mask"):
        if name not in graph.inputs:
            raise ExportError(f"{path} has no input {name}; it has {_named(graph.inputs)}")
    for name, value in graph.inputs.items():
        if name not in INPUTS:
            raise ExportError(f"{path} needs the input {name}; only {', '.join(INPUTS)} can be given")
        if value.type != "int64":
            raise ExportError(f"{path}: input {name} is {value.type}; it must be int64")
        _check_shape(path, "input", name, value, (None, None))
    if "token_type_ids" not in graph.inputs and _uses_token_types(reader):
        raise ExportError(
            f"{path} has no input token_type_ids; this model tells query and document apart by them "
            f"(config.json has type_vocab_size {reader.backbone.token_types}), and without them its scores "
            "would be others. Export it with them"
        )
    if spec.pad_query_to and reader.backbone.first_position and "position_ids" not in graph.inputs:
        raise SpecError(
            f"pad_query_to is {spec.pad_query_to}; it must be none: {path} has no input position_ids, and "
            "counts positions without the padding"
        )
    wanted = _VECTORS if spec.plan == "dual" else _LOGITS
    head = spec.options.head if isinstance(spec.options, BiEncoderOptions) else ()
    if head:  # its layers' weights are in no other output
        wanted = ("sentence_embedding",)
    output = next((name for name in wanted if name in graph.outputs), None)
    if output is None:
        raise ExportError(f"{path} has no output {' or '.join(wanted)}; it has {_named(graph.outputs)}")
    value = graph.outputs[output]
    if value.type not in ("float", "float16"):
        raise ExportError(f"{path}: output {output} is {value.type}; it must be float or float16")
    sizes: Shape
    if spec.plan == "dual":
        width = head[-1].width if head else config.get("hidden_size") or config.get("dim")
        if width is not None:
            check_truncation(spec, width)
        sizes = (None, width) if output == "sentence_embedding" else (None, None, width)
    else:
        labels = config.get("id2label")
        sizes = (None, len(labels) if isinstance(labels, Mapping) else config.get("num_labels", 2))
    _check_shape(path, "output", output, value, sizes)
    return output, sizes


def _named(values: Mapping[str, Value]) -> str:
    return ", ".join(values) or "none"


def _uses_token_types(reader: Reader) -> bool:
    """Whether an input of this reader has a token type other than 0."""
    (chunk,) = reader.split(reader.read_document("text"), max_chunks=1)
    dual = reader.spec.plan == "dual"
    return bool(reader.chunk_input(None if dual else reader.read_query("query"), chunk).token_type_ids.any())


def _check_shape(path: Path, what: str, name: str, value: Value, expected: Shape) -> None:
    """Refuse a wrong number of dimensions, a fixed dimension that must be free, and a wrong size."""
    if value.shape is None:
        return
    form = "(" + ", ".join("any" if size is None else str(size) for size in expected) + ")"
    if len(value.shape) != len(expected):
        raise ExportError(
            f"{path}: {what} {name} has {len(value.shape)} dimensions; it must have {len(expected)}, {form}"
        )
    for place, (size, wanted) in enumerate(zip(value.shape, expected, strict=True)):
        if size is not None and size != wanted:
            how = "fixed at" if wanted is None else "of size"
            raise ExportError(
                f"{path}: dimension {place} of {what} {name} is {how} {size}; it must be "
                f"{'free' if wanted is None else wanted}, so that the whole is {form}"
            )


def check_servable(opened: OpenedPublished, runtime: str, precision: Precision) -> None:
    """Check that a runtime can serve a graph with its real content, on this processor.

    Raises: PrecisionAbsent or RuntimeAbsent, with a remedy.
    """
    graph, file = opened.graph, opened.graph.file
    if file.format not in RUNTIMES[runtime].published:
        raise RuntimeAbsent(f"{runtime} does not read {file.path}")
    if file.instructions is not None and file.instructions not in (here := processor_instructions()):
        raise PrecisionAbsent(
            f"{file.path} was quantized for {file.instructions}, without which sums may overflow; this "
            f"processor has {', '.join(sorted(here)) or 'none of avx2, avx512, avx512_vnni, arm64'}"
        )
    if runtime == "openvino" and file.format == "onnx" and (graph.operators_of or graph.precision != "fp32"):
        reason = (
            f"has operators of {', '.join(graph.operators_of)}" if graph.operators_of else graph.precision
        )
        raise RuntimeAbsent(f"OpenVINO serves plain ONNX graphs of fp32, and {file.path} is not: {reason}")
    rounded = runtime == "openvino" and graph.precision == "fp32" and precision == "bf16"
    if precision != graph.precision and not rounded:
        raise PrecisionAbsent(
            f"{file.path} is in {graph.precision}, not in {precision}; rankers.NAME.export_file serves it "
            "by name"
        )


def open_published_runtime(
    opened: OpenedPublished, runtime: str, precision: Precision, placement: Placement
) -> Runtime:
    """Load a published graph, and run it once.

    Raises: as `check_servable`, RuntimeAbsent also if the runtime refuses the graph; ExportError if its
    output differs from its declaration; DeviceAbsent, OutOfMemory, DeviceLost.
    """
    check_servable(opened, runtime, precision)
    graph, reader = opened.graph, opened.reader
    module = cast(PublishedRuntime, RUNTIMES[runtime].load())
    try:
        loaded = module.open_encoder(graph.file.path, precision, placement, [opened.output])
    except (RuntimeAbsent, PrecisionAbsent, DeviceAbsent):
        raise
    except Exception as error:  # ONNX Runtime's exceptions have no other base
        raise _refused(graph, runtime, "loaded", error) from error
    _try(loaded.run, opened, runtime)
    files = GraphFiles(
        encoder=graph.file.path,
        aggregator=graph.file.path,
        precision=precision,
        longest_input=reader.max_input_tokens,
        pad_id=reader.pad_id,
        inputs=tuple(graph.inputs),
        similarity=reader.spec.similarity,
    )
    encoder = _encoder(loaded, _reading(opened), reader.backbone.first_position)
    return ExportedRuntime(encoder, _aggregator(opened.aggregator()), files)


def _try(run: RunGraph, opened: OpenedPublished, runtime: str) -> None:
    """Run a batch of inputs of different lengths, because a graph may have undeclared fixed sizes inside.

    Raises: RuntimeAbsent if it fails; ExportError if its output has another shape; OutOfMemory, DeviceLost.
    """
    graph, reader = opened.graph, opened.reader
    query = None if reader.spec.plan == "dual" else reader.read_query("a query")
    inputs = [
        reader.chunk_input(query, reader.split(reader.read_document(text), max_chunks=1)[0])
        for text in ("a text", "a text of some more words", "")
    ]
    batch = {
        name: torch.from_numpy(array) for name, array in collate(inputs, reader.pad_id)._asdict().items()
    }
    try:
        (output,) = run(_given(batch, reader.backbone.first_position))
    except (OutOfMemory, DeviceLost):
        raise
    except Exception as error:  # as above
        raise _refused(graph, runtime, "run", error) from error
    positions, sizes = batch["roles"].shape, opened.shape
    expected = (len(inputs), *([positions[1]] if len(sizes) == 3 else []), sizes[-1] or output.shape[-1])
    if tuple(output.shape) != expected:
        raise ExportError(
            f"{graph.file.path}: output {opened.output} has shape {tuple(output.shape)} for inputs of shape "
            f"{tuple(positions)}; it must have {expected}"
        )


def _refused(graph: PublishedGraph, runtime: str, done: str, error: Exception) -> RuntimeAbsent:
    lines = str(error).strip().splitlines()
    reason = lines[-1] if lines else repr(error)
    opset = "" if graph.opset is None else f" (opset {graph.opset})"
    return RuntimeAbsent(f"{graph.file.path}{opset} cannot be {done} by {runtime} here: {reason}")


# Makes features from an output and the inputs' roles.
Reading = Callable[[Tensor, Tensor], Features]


def _reading(opened: OpenedPublished) -> Reading:
    options = opened.reader.spec.options
    if not isinstance(options, BiEncoderOptions):
        return lambda logits, roles: relevance(logits.float())
    if opened.output == "sentence_embedding":
        return lambda vectors, roles: finished(vectors, options)
    return lambda hidden, roles: finished(pooled(hidden, PaddedFeatures(roles), options), options)


def _encoder(loaded: EncoderGraph, read: Reading, first_position: int) -> EncoderGraph:
    """Make an encoder from a loaded graph: input_ids, roles, token_type_ids (P, L) each -> vectors (P, F)."""

    def run(batch: Mapping[str, Tensor]) -> list[Tensor]:
        return _vectors(loaded.run(_given(batch, first_position)), batch["roles"], read)

    begin_graph = loaded.begin
    if begin_graph is None:
        return replace(loaded, run=run)

    def begin(parts: Sequence[Mapping[str, Tensor]]) -> BegunGraph:
        begun = begin_graph([_given(part, first_position) for part in parts])
        return _BegunEncoder(begun, [part["roles"] for part in parts], read)

    return replace(loaded, run=run, begin=begin)


@dataclass(frozen=True, slots=True, eq=False)
class _BegunEncoder:
    """A published graph's run on a batch in parts, of roles (P, L) each."""

    begun: BegunGraph
    roles: Sequence[Tensor]
    read: Reading

    def outputs(self) -> list[list[Tensor]]:
        """Wait for the graph; return each part's vectors (P, F)."""
        parts = zip(self.begun.outputs(), self.roles, strict=True)
        return [_vectors(outputs, roles, self.read) for outputs, roles in parts]

    def device_s(self) -> float:
        """Return the time that the graph took."""
        return self.begun.device_s()


def _vectors(outputs: Sequence[Tensor], roles: Tensor, read: Reading) -> list[Tensor]:
    """Read a graph's one output. Shapes: roles (P, L) -> vectors (P, F)."""
    (output,) = outputs
    with torch.inference_mode():
        return [read(output, roles.to(output.device)).vectors]


def _given(batch: Mapping[str, Tensor], first_position: int) -> Mapping[str, Tensor]:
    """Make the possible inputs of a graph. Shapes: input_ids, roles, token_type_ids (P, L) each -> (P, L)."""
    roles = batch["roles"]
    places = torch.arange(first_position, first_position + roles.shape[1])  # (L,)
    return {
        "input_ids": batch["input_ids"],
        "attention_mask": (roles != Role.PADDING).to(torch.int64),
        "token_type_ids": batch["token_type_ids"],
        "position_ids": places.expand_as(roles),
    }


def _aggregator(aggregator: Aggregator[Any]) -> RunGraph:
    def aggregate(inputs: Mapping[str, Tensor]) -> list[Tensor]:
        """Shapes: vectors (D, C, F), chunk_mask (D, C) [, query_vectors (D, F)] -> (D,), (D, C)."""
        query = Features(inputs["query_vectors"]) if "query_vectors" in inputs else None
        with torch.inference_mode():
            return list(aggregator.explain(Features(inputs["vectors"]), inputs["chunk_mask"], query))

    return aggregate
