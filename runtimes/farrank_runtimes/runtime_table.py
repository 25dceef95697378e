"""Farrank's runtimes, a row for each.

A new runtime is one module and one row here; another package can put its own row into RUNTIMES. A module is
imported when its runtime is first considered, and with it the runtime's library.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal, Protocol, cast

from farrank_rankers.exports.export_folder import ExportedRanker
from farrank_rankers.exports.manifest import ExportFormat
from farrank_rankers.exports.published_files import PublishedFormat
from farrank_rankers.package_versions import package_version
from farrank_runtimes.graph_files import EncoderGraph, GraphFiles
from farrank_runtimes.runtime import Placement, Precision, Runtime, RuntimeAbsent

DeviceType = Literal["cpu", "cuda"]

# Means the fastest runtime that can serve a ranker.
AUTO = "auto"


class ExportRuntime(Protocol):
    """The functions of a module that serves exports."""

    def check(self, precision: Precision, placement: Placement) -> None:
        """As `check_here`."""

    def open_graphs(self, files: GraphFiles, placement: Placement) -> Runtime:
        """As `open_export`."""


class PublishedRuntime(Protocol):
    """The additional function of a module that also serves published graphs."""

    def open_encoder(
        self, graph: Path, precision: Precision, placement: Placement, outputs: Sequence[str]
    ) -> EncoderGraph:
        """Load a graph with the named outputs."""


@dataclass(frozen=True, slots=True)
class RuntimeRow:
    """A runtime: its module, the exports that it reads, and its rank.

    `reads` is None for torch, which runs the ranker itself. `published` are the formats of others' graphs
    that it reads with `open_encoder`. `ranks` gives the precisions that it serves on a type of device, each
    with a rank: among all candidates for a ranker, the lowest rank is chosen. Each of `packages` contains its
    library.
    """

    module: str
    reads: ExportFormat | None
    ranks: Mapping[DeviceType, Mapping[Precision, int]]
    published: frozenset[PublishedFormat] = frozenset()
    packages: tuple[str, ...] = ()

    def load(self) -> ExportRuntime:
        """Import the module, with the type that import_module cannot give."""
        return cast(ExportRuntime, import_module(self.module))


# Ranks on a CPU follow measured speed (decision 0012). On a GPU they are a guess: tensor cores before fp32.
# Candidates with a rank after torch's first precision are served only by name.
RUNTIMES: dict[str, RuntimeRow] = {
    "torch": RuntimeRow(
        "farrank_runtimes.torch_runtime",
        None,
        {"cpu": {"fp32": 60, "bf16": 70}, "cuda": {"bf16": 50, "fp32": 80}},
        packages=("torch",),
    ),
    "onnx": RuntimeRow(
        "farrank_runtimes.onnx_runtime",
        "onnx",
        {"cpu": {"int8": 30, "fp32": 50, "fp16": 80}, "cuda": {"fp16": 40, "fp32": 70}},
        frozenset({"onnx"}),
        packages=("onnxruntime-gpu", "onnxruntime"),
    ),
    "openvino": RuntimeRow(
        "farrank_runtimes.openvino_runtime",
        "onnx",
        {"cpu": {"int8": 10, "bf16": 20, "fp32": 40}},
        frozenset({"onnx", "openvino"}),
        packages=("openvino",),
    ),
    "tensorrt": RuntimeRow(
        "farrank_runtimes.tensorrt_runtime",
        "tensorrt",
        {"cuda": {"int8": 10, "fp16": 20, "bf16": 30, "fp32": 60}},
        packages=("tensorrt-cu13-libs", "tensorrt"),
    ),
}


def fastest_first(device: DeviceType) -> list[tuple[str, Precision]]:
    """List runtimes and precisions for a type of device in the order in which they are tried."""
    ranked = [
        (rank, name, precision)
        for name, row in RUNTIMES.items()
        for precision, rank in row.ranks.get(device, {}).items()
    ]
    return [(name, precision) for _, name, precision in sorted(ranked, key=lambda each: each[0])]


def readers_of(form: ExportFormat, precision: Precision) -> tuple[str, ...]:
    """List the runtimes that read an export of a format and precision, on any device."""
    return tuple(
        name
        for name, row in RUNTIMES.items()
        if row.reads == form and any(precision in ranks for ranks in row.ranks.values())
    )


def installed_version(runtime: str) -> str | None:
    """Return the installed release of a runtime's library; None if there is none."""
    return next(filter(None, map(package_version, RUNTIMES[runtime].packages)), None)


def check_here(runtime: str, precision: Precision, placement: Placement) -> None:
    """Check that a runtime is installed, and serves a precision on this machine.

    Raises: RuntimeAbsent, PrecisionAbsent, DeviceAbsent, each with a remedy.
    """
    if runtime not in RUNTIMES:
        raise RuntimeAbsent(f"there is no runtime {runtime!r}; known are {', '.join(RUNTIMES)}")
    row = RUNTIMES[runtime]
    if row.reads is not None:  # torch is always installed
        row.load().check(precision, placement)


def open_export(runtime: str, exported: ExportedRanker, placement: Placement) -> Runtime:
    """Load an export's graphs.

    Raises: RuntimeAbsent, PrecisionAbsent, DeviceAbsent.
    """
    return RUNTIMES[runtime].load().open_graphs(GraphFiles.of(exported, runtime), placement)
