"""An export's manifest.json.

It lists the graphs, the runtimes that may run them, and the differences of their scores from the ranker's.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal

from farrank_rankers.errors import ExportError, SpecError
from farrank_rankers.family import EvidenceKind, family_named
from farrank_rankers.json_values import loads, read_fields

DIGEST = "digest"


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Give a JSON object with the SHA-256 of its other keys, which does not depend on order and layout."""
    others = {key: value for key, value in values.items() if key != DIGEST}
    canonical = json.dumps(others, sort_keys=True, separators=(",", ":"))
    return others | {DIGEST: hashlib.sha256(canonical.encode()).hexdigest()}


ExportFormat = Literal["onnx", "tensorrt"]
ExportPrecision = Literal["fp32", "fp16", "bf16", "int8"]
# The library that traced a ranker's encoder.
Exporter = Literal["torch", "optimum"]

MANIFEST_VERSION = 2

# The runtime that serves the ranker itself. All others, including those of other packages, may serve exports.
TORCH = "torch"


@dataclass(frozen=True, slots=True)
class Graph:
    """One graph's file, and its inputs and outputs in their order.

    `variants` names the files of runtimes with their own file ({"openvino": "encoder.xml"}).
    """

    file: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    variants: Mapping[str, str] = field(default_factory=dict)

    def file_for(self, runtime: str) -> str:
        """Name the file that a runtime opens."""
        return self.variants.get(runtime, self.file)


@dataclass(frozen=True, slots=True)
class ExportParity:
    """Differences of the export's scores in one runtime from those of the ranker in torch, fp32.

    `computed_in` is the precision that the runtime really used. Differences are absolute, on the scale of the
    scores, whose standard deviation within a query is `spread`; `kendall_tau` (tau-b), `top10_overlap` and
    `ndcg10` are means over queries, and `worst_tau` is the lowest tau of one. nDCG@10 is judged by the ranker
    itself: its ten best documents have the grades 10 to 1. `bound` is the bound that the export was compared
    with.
    """

    runtime: str
    device: str
    computed_in: str
    queries: int
    documents: int
    max_difference: float
    mean_difference: float
    spread: float
    kendall_tau: float
    worst_tau: float
    top10_overlap: float
    ndcg10: float
    bound: str

    def __post_init__(self) -> None:
        """Refuse figures that no measurement can have."""
        for name in ("queries", "documents", "max_difference", "mean_difference", "spread"):
            if getattr(self, name) < 0:
                raise ExportError(f"{name} is {getattr(self, name)}; it must be at least 0")
        for name, least in (("kendall_tau", -1), ("worst_tau", -1), ("top10_overlap", 0), ("ndcg10", 0)):
            if not least <= getattr(self, name) <= 1:
                raise ExportError(f"{name} is {getattr(self, name)}; it must be from {least} to 1")


@dataclass(frozen=True, slots=True)
class RefusedRuntime:
    """A runtime that was left out of an export because its graph is beyond its bound.

    `parity` holds the figures; None if scores were NaN.
    """

    runtime: str
    reason: str
    parity: ExportParity | None = None


@dataclass(frozen=True, slots=True)
class Quantization:
    """The quantization of a runtime's encoder to int8; `products` counts the products computed in it."""

    runtime: str
    way: str
    products: int

    def __str__(self) -> str:
        """Describe it in a line of a report."""
        return f"{self.runtime}: {self.products} products in int8 ({self.way})"


@dataclass(frozen=True, slots=True)
class ExportManifest:
    """The facts of an export.

    `precision` is the export's precision of computation, `stored_as` that of its stored weights: an export
    for bf16 stores fp32, which OpenVINO rounds. `runtimes` may serve it. `refused` may not, though there was
    a graph for them. `drifting` serve it beyond its bound, because it was made with --allow-drift.
    `quantized` describes the quantization of graphs in int8; `exporter` is the library that traced the
    encoder. `weights_digest` and `source_version` are the ranker's, so that a server of the export knows its
    version without reading weights. `sources` and `checksums` map file names, of the artifact and of the
    export, to SHA-256.
    """

    format: ExportFormat
    precision: ExportPrecision
    stored_as: str
    family: str
    evidence: EvidenceKind
    opset: int
    graphs: Mapping[str, Graph]
    runtimes: tuple[str, ...]
    weights_digest: str
    source_version: str
    created_with: Mapping[str, str]
    sources: Mapping[str, str]
    checksums: Mapping[str, str]
    parity: tuple[ExportParity, ...] = ()
    refused: tuple[RefusedRuntime, ...] = ()
    drifting: tuple[str, ...] = ()
    quantized: tuple[Quantization, ...] = ()
    exporter: Exporter = "torch"
    manifest_version: int = MANIFEST_VERSION

    def __post_init__(self) -> None:
        """Refuse unknown names, missing graphs and files outside the folder."""
        try:
            family_named(self.family)
        except SpecError as error:
            raise ExportError(str(error)) from None
        if self.opset < 1:
            raise ExportError(f"opset is {self.opset}; it must be at least 1")
        if not self.runtimes:
            raise ExportError("runtimes is empty; an export is served by at least 1")
        if TORCH in self.runtimes:
            raise ExportError(f"runtimes names {TORCH!r}, which serves the ranker itself and no export")
        for each in self.refused:
            if each.runtime in self.runtimes:
                raise ExportError(f"refused names {each.runtime}, which runtimes names, too")
        for name in ("encoder", "aggregator"):
            if name not in self.graphs:
                raise ExportError(f"graphs lacks the key {name}")
        named = [file for graph in self.graphs.values() for file in (graph.file, *graph.variants.values())]
        for key, names in (("graphs", named), ("sources", self.sources), ("checksums", self.checksums)):
            for name in names:
                path = PurePosixPath(name)
                if path.is_absolute() or ".." in path.parts or not path.parts:
                    raise ExportError(f"{key}: {name!r} is not a file inside the folder")
        unchecked = sorted(set(named) - set(self.checksums))
        if unchecked:
            raise ExportError(f"checksums lacks {unchecked[0]}, which graphs names")

    @property
    def name(self) -> str:
        """The export's folder: format and precision."""
        return export_name(self.format, self.precision)

    def to_json(self) -> str:
        """Return the text of the `manifest.json`, with its digest."""
        values = sealed(asdict(self) | {"evidence": self.evidence.value})
        return json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "ExportManifest":
        """Read the text of a `manifest.json`.

        Raises: ExportError if the text has changed since it was written, else naming the unknown version, or
        the key that is missing, unknown or wrong.
        """
        try:
            values: Any = loads(text)
        except ValueError as error:
            raise ExportError(f"it is not JSON: {error}") from error
        found = values.get("manifest_version") if isinstance(values, dict) else None
        if found != MANIFEST_VERSION:
            raise ExportError(
                f"manifest_version is {found!r}; this version of Farrank reads {MANIFEST_VERSION}: "
                "export the ranker again"
            )
        anew = "farrank export --force exports it again"
        if DIGEST not in values:
            raise ExportError(f"the manifest lacks the key {DIGEST}; {anew}")
        digest, expected = values.pop(DIGEST), sealed(values)[DIGEST]
        if digest != expected:
            raise ExportError(
                f"it was changed since it was written: {DIGEST} is {digest!r}, and {expected} is that of its "
                f"other keys; {anew}"
            )
        values.pop("profiles", None)  # for TensorRT: older manifests have them, but nothing reads them
        return read_fields(cls, values, "the manifest", ExportError)


def export_name(form: ExportFormat, precision: ExportPrecision) -> str:
    """Name the folder of an export."""
    return f"{form}-{precision}"
