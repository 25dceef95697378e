"""The real content of a published graph, read from its file before it is served."""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from farrank_rankers.errors import ExportError
from farrank_rankers.exports.export_folder import checksum
from farrank_rankers.exports.manifest import ExportPrecision
from farrank_rankers.exports.published_files import PublishedFile
from farrank_rankers.files.model_files import hub_checksum
from farrank_runtimes.runtime import RuntimeAbsent

if TYPE_CHECKING:
    import onnx
    import openvino

# A dimension's size; None if it is free.
Shape = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """An input or output: its type by ONNX's names in lower case ("int64", "float"), a shape of None for any.

    `place` is its index among the graph's inputs or outputs.
    """

    type: str
    shape: Shape | None
    place: int


@dataclass(frozen=True, slots=True)
class PublishedGraph:
    """A graph's inputs and outputs in their order, and all of its files.

    `precision` is that of its arithmetic, and `stored_as` that of most of its stored weights. `operators_of`
    names the domains of operators other than ONNX's ("com.microsoft"); `opset` is the version of ONNX's
    operators, None for OpenVINO.
    """

    file: PublishedFile
    inputs: Mapping[str, Value]
    outputs: Mapping[str, Value]
    precision: ExportPrecision
    stored_as: str
    files: tuple[Path, ...]
    opset: int | None = None
    operators_of: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Hash names and content of all of its files to 32 hexadecimal digits; each is read once.

        Raises: ExportError naming a file of the hub's cache that differs from the uploaded one.
        """
        digest = hashlib.blake2b(digest_size=16)
        for path in sorted(self.files):
            found = checksum(path)
            if found != (hub_checksum(path) or found):
                raise ExportError(
                    f"{path} is damaged: {path.resolve()} has the SHA-256 {found}; delete it, and download "
                    "it again"
                )
            digest.update(f"{path.relative_to(self.file.folder).as_posix()} {found}\n".encode())
        return digest.hexdigest()


def read_graph(file: PublishedFile) -> PublishedGraph:
    """Read a published graph's inputs, outputs and files.

    Raises: ExportError naming the file and its problem; RuntimeAbsent with the command that installs the
    package that reads it.
    """
    # Opening a pipe would wait for its other end.
    if not file.path.is_file():
        raise ExportError(f"{file.path} is not a file, or is a broken link")
    try:
        return _read_onnx(file) if file.format == "onnx" else _read_openvino(file)
    except ExportError:
        raise
    except ValueError as error:  # it has an unknown type or number
        raise ExportError(f"{file.path} is damaged: {error}") from error


# Operators of quantized graphs only.
_QUANTIZED = ("QLinear", "QGemm", "MatMulInteger", "ConvInteger", "DynamicQuantize", "DequantizeLinear")


def _read_onnx(file: PublishedFile) -> PublishedGraph:
    try:
        import onnx
    except ModuleNotFoundError as error:
        raise RuntimeAbsent(
            f"reading {file.path} needs the package onnx, which is not installed; pip install 'farrank[onnx]'"
        ) from error
    try:
        # Weights in separate files are not loaded.
        model = onnx.load(str(file.path), load_external_data=False)
        onnx_types: Any = onnx.TensorProto.DataType
        if not model.graph.node:
            raise ValueError("it has no operators")
    except OSError as error:
        raise ExportError(f"{file.path} cannot be read: {error.strerror}") from error
    except Exception as error:  # protobuf's decoders have no other base
        raise ExportError(f"{file.path} is damaged or not an ONNX model: {error}") from error
    opset = next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), None)
    if opset is None:
        raise ExportError(f"{file.path} names no opset of ONNX; a model names the version of its operators")
    if opset > (known := onnx.defs.onnx_opset_version()):
        raise ExportError(f"{file.path} is of opset {opset}; versions up to {known} are known here")
    weights = list(_tensors(model.graph))
    stored: dict[str, int] = {}
    for tensor in weights:
        name = onnx_types.Name(tensor.data_type).lower()
        stored[name] = stored.get(name, 0) + math.prod(tensor.dims)
    nodes = list(_nodes(model.graph))
    quantized = any(word in node.op_type for node in nodes for word in _QUANTIZED)
    low_bits = any("MatMulNBits" in node.op_type or "MatMulBnb4" in node.op_type for node in nodes)
    if low_bits:
        raise ExportError(f"{file.path} has weights of 4 bits, a precision that is not supported")
    floats = {name: size for name, size in stored.items() if name in ("float", "float16", "bfloat16")}
    most = max(floats, key=lambda name: floats[name], default="float")
    if most == "bfloat16" and not quantized:
        raise ExportError(
            f"{file.path} holds bfloat16, which no runtime here computes; fp32 and fp16 are served"
        )

    def values(infos: "Iterable[onnx.ValueInfoProto]") -> dict[str, Value]:
        found: dict[str, Value] = {}
        for place, info in enumerate(infos):
            kind = info.type.tensor_type
            sizes = (each.dim_value if each.HasField("dim_value") else None for each in kind.shape.dim)
            shape = tuple(sizes) if kind.HasField("shape") else None
            found[info.name] = Value(onnx_types.Name(kind.elem_type).lower(), shape, place)
        return found

    # Old exporters list weights among the inputs.
    initial = {tensor.name for tensor in model.graph.initializer}

    return PublishedGraph(
        file=file,
        inputs=values(each for each in model.graph.input if each.name not in initial),
        outputs=values(model.graph.output),
        precision="int8" if quantized else "fp16" if most == "float16" else "fp32",
        stored_as=max(stored, key=lambda name: stored[name], default="float"),
        files=(file.path, *_external(file, weights)),
        opset=opset,
        operators_of=tuple(sorted({node.domain for node in nodes} - {"", "ai.onnx"})),
    )


def _nodes(graph: "onnx.GraphProto") -> Iterator["onnx.NodeProto"]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


def _tensors(graph: "onnx.GraphProto") -> Iterator["onnx.TensorProto"]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            for inner in (attribute.g, *attribute.graphs):
                yield from _tensors(inner)


def _external(file: PublishedFile, tensors: "Iterable[onnx.TensorProto]") -> list[Path]:
    """List the files with weights besides the graph's own.

    Raises: ExportError naming the file that is missing, too short or elsewhere, and the tensor that needs it.
    """
    needed: dict[str, tuple[int, str]] = {}
    for tensor in tensors:
        if tensor.data_location != tensor.EXTERNAL:
            continue
        said = {entry.key: entry.value for entry in tensor.external_data}
        location, end = said.get("location", ""), int(said.get("offset", 0)) + int(said.get("length", 0))
        if not location or PurePosixPath(location).is_absolute() or ".." in PurePosixPath(location).parts:
            raise ExportError(
                f"{file.path}: the weight {tensor.name} is in {location!r}; it must be in a file next to it"
            )
        needed[location] = max(needed.get(location, (0, "")), (end, tensor.name))
    for location, (end, name) in needed.items():
        path = file.path.parent / location
        if not path.is_file():
            raise ExportError(f"{path} is missing, where {file.path} has its weight {name}")
        if (size := path.stat().st_size) < end:
            raise ExportError(
                f"{path} is damaged: it has {size} bytes, and the weight {name} of {file.path} "
                f"ends at byte {end}"
            )
    return [file.path.parent / location for location in sorted(needed)]


def _read_openvino(file: PublishedFile) -> PublishedGraph:
    try:
        import openvino
    except ModuleNotFoundError as error:
        raise RuntimeAbsent(
            f"{file.path} needs OpenVINO, which is not installed; pip install 'farrank[openvino]'"
        ) from error
    weights = file.path.with_suffix(".bin")
    if not weights.is_file():
        raise ExportError(f"{weights} is missing, where {file.path} has its weights")
    try:
        model = openvino.Core().read_model(str(file.path))
    except RuntimeError as error:
        raise ExportError(f"{file.path} is damaged or not an OpenVINO model: {_first_line(error)}") from error
    stored: dict[str, int] = {}
    quantized = False
    for node in model.get_ordered_ops():
        kind = node.get_type_name()
        quantized = quantized or kind == "FakeQuantize"
        if kind == "Constant":
            name = node.get_output_element_type(0).get_type_name()
            stored[name] = stored.get(name, 0) + math.prod(node.get_output_shape(0))
    most = max(stored, key=lambda name: stored[name], default="f32")
    if most in ("i4", "u4", "nf4"):
        raise ExportError(f"{file.path} has weights of 4 bits, a precision that is not supported")
    return PublishedGraph(
        file=file,
        inputs=_ports(model.inputs),
        outputs=_ports(model.outputs),
        # Weights in fp16 are converted to fp32 when loaded.
        precision="int8" if quantized or most in ("i8", "u8") else "fp32",
        stored_as=most,
        files=(file.path, weights),
    )


_TYPES = {"i64": "int64", "i32": "int32", "f32": "float", "f16": "float16", "bf16": "bfloat16"}


def _ports(ports: "list[openvino.Output]") -> dict[str, Value]:
    found: dict[str, Value] = {}
    for place, port in enumerate(ports):
        kind = port.get_element_type().get_type_name()
        shape = port.get_partial_shape()
        extents = None
        if not shape.rank.is_dynamic:
            extents = tuple(each.get_length() if each.is_static else None for each in shape)
        # A port may have several names for the same value, or none.
        names = sorted(port.get_names()) or [f"output {place}"]
        for name in names:
            found[name] = Value(_TYPES.get(kind, kind), extents, place)
    return found


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else repr(error)
