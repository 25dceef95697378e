"""Which runtime serves a ranker: the fastest that artifact and machine allow, or the one asked for."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from farrank_rankers.errors import SpecError
from farrank_rankers.exports.export_folder import Export, find_exports, open_exported
from farrank_rankers.exports.manifest import Parity
from farrank_rankers.family import EvidenceKind
from farrank_rankers.files.location import locate
from farrank_rankers.files.model_files import SPEC_FILE
from farrank_rankers.files.open import Overrides, open_ranker
from farrank_rankers.reader import Reader
from farrank_runtimes.devices import choose_device
from farrank_runtimes.openers import Placement, check_here, open_export
from farrank_runtimes.runtime import (
    PackingAbsent,
    Precision,
    PrecisionAbsent,
    Runtime,
    RuntimeAbsent,
    RuntimeChoice,
    RuntimeName,
)

# The fastest first, for each type of device: on a CPU as measured (decision 0012), on a GPU as reckoned,
# tensor cores before fp32. What stands behind torch's first entry is served only if asked for. No entry is
# beyond what `farrank export` makes.
FASTEST: Mapping[str, Sequence[tuple[RuntimeName, Precision]]] = {
    "cpu": (
        ("openvino", "int8"),
        ("openvino", "bf16"),
        ("onnx", "int8"),
        ("openvino", "fp32"),
        ("onnx", "fp32"),
        ("torch", "fp32"),
        ("torch", "bf16"),
        ("onnx", "fp16"),
    ),
    "cuda": (
        ("tensorrt", "int8"),
        ("tensorrt", "fp16"),
        ("tensorrt", "bf16"),
        ("onnx", "fp16"),
        ("torch", "bf16"),
        ("tensorrt", "fp32"),
        ("onnx", "fp32"),
        ("torch", "fp32"),
    ),
}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A runtime, and the export that it would serve; torch serves the ranker itself."""

    runtime: RuntimeName
    precision: Precision
    export: Export | None = None

    def __str__(self) -> str:
        """Name both: "openvino with onnx-int8"."""
        if self.export is None:
            return f"{self.runtime} {self.precision}"
        return f"{self.runtime} with {self.export.manifest.name}"


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """A ranker ready to be served, why by this runtime, and how close that comes to torch in fp32.

    `version` is the ranker's, whichever runtime serves it; `parity` is None for torch.
    """

    reader: Reader
    version: str
    evidence: EvidenceKind
    runtime: Runtime
    reason: str
    parity: Parity | None = None


def open_ranker_runtime(
    source: str,
    overrides: Overrides,
    *,
    runtime: RuntimeChoice = "auto",
    precision: Precision | None = None,
    placement: Placement | None = None,
) -> Served:
    """Open a ranker with the runtime asked for; "auto" takes the fastest, of any precision that is exported.

    A server of an export never reads the ranker's weights; exports read padded batches alone.
    Raises: RuntimeAbsent, PrecisionAbsent, PackingAbsent, DeviceAbsent, saying what helps; SourceError,
    WeightsError if the ranker cannot be opened, ExportError if an export is damaged or stale, SpecError if
    an override does not fit.
    """
    placement = placement or Placement()
    if placement.packing == "packed":
        if runtime not in ("auto", "torch"):
            raise PackingAbsent(f"packed batches are torch's alone; {runtime} reads padded ones")
        runtime = "torch"
    if runtime != "auto":
        check_here(runtime, precision or "fp32", placement)
    if runtime == "openvino" and placement.device is None:
        placement = replace(placement, device="cpu")
    device = choose_device(placement.device).type
    # Who asks for torch is served in spite of an export that is damaged.
    exports = [] if runtime == "torch" else _exports(source, overrides)
    found = list(candidates(device, exports, runtime, precision))
    if not found:
        raise _nothing(source, device, exports, runtime, precision)
    passed_over: list[str] = []
    for candidate in found:
        try:
            check_here(candidate.runtime, candidate.precision, placement)
            return _open(candidate, source, overrides, placement, _reason(candidate, runtime, passed_over))
        except (RuntimeAbsent, PrecisionAbsent, SpecError) as error:
            # Somebody who named the runtime gets that one or none; so does who asked for what none can do.
            if runtime != "auto" or candidate is found[-1]:
                raise
            passed_over.append(f"{candidate}: {error}")
    raise AssertionError("the last candidate was neither opened nor refused")


def candidates(
    device: str, exports: Sequence[Export], runtime: RuntimeChoice, precision: Precision | None
) -> Iterator[Candidate]:
    """List what could serve a ranker on a type of device, the fastest first."""
    for name, each in FASTEST[device]:
        if runtime not in ("auto", name) or precision not in (None, each):
            continue
        if name == "torch":
            yield Candidate(name, each)
        for export in exports:
            if export.manifest.precision == each and name in export.manifest.runtimes:
                yield Candidate(name, each, export)


def _exports(source: str, overrides: Overrides) -> list[Export]:
    folder = locate(source, download=overrides.get("download") or False).folder
    return find_exports(folder) if (folder / SPEC_FILE).is_file() else []


def _open(
    candidate: Candidate, source: str, overrides: Overrides, placement: Placement, reason: str
) -> Served:
    if candidate.export is None:
        from farrank_runtimes.torch_runtime import dtype_of, open_torch

        ranker = open_ranker(
            source,
            dtype=dtype_of(candidate.precision),
            device=choose_device(placement.device),
            **overrides,
        )
        torch, form = open_torch(ranker, candidate.precision, placement)
        evidence = ranker.aggregator.evidence
        return Served(ranker.reader, ranker.version, evidence, torch, f"{reason}; {form}")
    manifest = candidate.export.manifest
    exported = open_exported(_artifact(candidate.export), manifest.name, **overrides)
    measured = [each for each in manifest.parity if each.runtime == candidate.runtime]
    return Served(
        exported.reader,
        exported.version,
        manifest.evidence,
        open_export(candidate.runtime, exported, placement),
        reason,
        measured[0] if measured else None,
    )


def _artifact(export: Export) -> Path:
    return export.folder.parent.parent


def _reason(candidate: Candidate, runtime: RuntimeChoice, passed_over: Sequence[str]) -> str:
    """Say in a line why a candidate was chosen."""
    if runtime != "auto":
        return f"{candidate}: asked for"
    reason = f"{candidate}: the fastest that the artifact and this machine allow"
    return "; ".join([reason, *(f"passed over {each}" for each in passed_over)])


def _nothing(
    source: str,
    device: str,
    exports: Sequence[Export],
    runtime: RuntimeChoice,
    precision: Precision | None,
) -> RuntimeAbsent | PrecisionAbsent:
    listed = {each for name, each in FASTEST[device] if runtime in ("auto", name)}
    if not listed:
        return RuntimeAbsent(f"{runtime} serves nothing on {device}; try --device cpu")
    if precision is not None and precision not in listed:
        who = "Farrank" if runtime == "auto" else runtime
        return PrecisionAbsent(f"{who} serves {_enumerated(listed)} on {device}, not {precision}")
    for export in exports:
        for each in export.manifest.refused:
            if each.runtime == runtime and precision in (None, export.manifest.precision):
                return RuntimeAbsent(f"{runtime} may not serve {export.folder}: {each.reason}")
    there = ", ".join(export.manifest.name for export in exports) or "none"
    form = "tensorrt" if runtime == "tensorrt" else "onnx"
    command = f"farrank export {source} --format {form} --precision {precision or 'fp32'}"
    if precision is not None:
        what = "" if runtime == "auto" else f" that {runtime} serves"
        return PrecisionAbsent(
            f"no export of {source} is in {precision}{what}; it has {there}; try {command}"
        )
    return RuntimeAbsent(f"no export of {source} is for {runtime} here; it has {there}; try {command}")


def _enumerated(precisions: Collection[Precision]) -> str:
    """Write "fp32, fp16 and int8"."""
    *others, last = [each for each in get_args(Precision) if each in precisions]
    return f"{', '.join(others)} and {last}"
