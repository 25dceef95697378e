"""Which runtime serves a ranker: the one that is configured, or the fastest that can."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from farrank_rankers.errors import SpecError
from farrank_rankers.exports.export_folder import Export, find_exports, open_exported
from farrank_rankers.exports.manifest import Parity
from farrank_rankers.family import EvidenceKind
from farrank_rankers.files.model_files import SPEC_FILE, locate
from farrank_rankers.files.open import Overrides, open_ranker
from farrank_rankers.reader import Reader
from farrank_runtimes.devices import choose_device
from farrank_runtimes.runtime import (
    PackingAbsent,
    Placement,
    Precision,
    PrecisionAbsent,
    Runtime,
    RuntimeAbsent,
)
from farrank_runtimes.runtime_table import AUTO, RUNTIMES, DeviceType, check_here, fastest_first, open_export


@dataclass(frozen=True, slots=True)
class Candidate:
    """A runtime and the export that it would serve; torch has no export, it runs the ranker itself."""

    runtime: str
    precision: Precision
    export: Export | None = None

    def __str__(self) -> str:
        """Name both: "openvino with onnx-int8"."""
        if self.export is None:
            return f"{self.runtime} {self.precision}"
        return f"{self.runtime} with {self.export.manifest.name}"


@dataclass(frozen=True, slots=True, eq=False)
class ServableRanker:
    """A ranker with its runtime loaded.

    `version` is the ranker's, whichever runtime serves it. `reason` says in a line why this runtime does.
    `parity` says how close an export's scores are to those of torch in fp32; None for torch.
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
    runtime: str = AUTO,
    precision: Precision | None = None,
    placement: Placement | None = None,
) -> ServableRanker:
    """Open a ranker with the runtime asked for; AUTO takes the fastest, of any precision that is exported.

    Serving an export never reads the ranker's weights. Only torch packs batches.
    Raises: RuntimeAbsent, PrecisionAbsent, PackingAbsent, DeviceAbsent, saying what helps; SourceError,
    WeightsError if the ranker cannot be opened, ExportError if an export is damaged or stale, SpecError if
    an override does not fit.
    """
    placement = placement or Placement()
    if placement.packing == "packed":
        if runtime not in (AUTO, "torch"):
            raise PackingAbsent(f"only torch packs batches; {runtime} pads them")
        runtime = "torch"
    if runtime != AUTO:
        check_here(runtime, precision or "fp32", placement)
        if placement.device is None and list(RUNTIMES[runtime].ranks) == ["cpu"]:
            placement = replace(placement, device="cpu")
    device: DeviceType = "cpu" if choose_device(placement.device).type == "cpu" else "cuda"
    exports: list[Export] = []
    if runtime != "torch":  # which can serve a ranker whose exports are damaged
        folder = locate(source, download=overrides.get("download") or False).folder
        exports = find_exports(folder) if (folder / SPEC_FILE).is_file() else []
    found = list(candidates(device, exports, runtime, precision))
    if not found:
        raise _nothing_to_serve(source, device, exports, runtime, precision)
    unusable: list[str] = []
    for candidate in found:
        try:
            check_here(candidate.runtime, candidate.precision, placement)
            return _open(candidate, source, overrides, placement, _reason(candidate, runtime, unusable))
        except (RuntimeAbsent, PrecisionAbsent, SpecError) as error:
            # A runtime that was named is never replaced; otherwise the last candidate's error is the answer.
            if runtime != AUTO or candidate is found[-1]:
                raise
            unusable.append(f"{candidate} ({error})")
    raise AssertionError("the last candidate was neither opened nor refused")


def candidates(
    device: DeviceType, exports: Sequence[Export], runtime: str, precision: Precision | None
) -> Iterator[Candidate]:
    """List what could serve a ranker on a type of device, the fastest first."""
    for name, each in fastest_first(device):
        if runtime not in (AUTO, name) or precision not in (None, each):
            continue
        if RUNTIMES[name].reads is None:
            yield Candidate(name, each)
        for export in exports:
            if export.manifest.precision == each and name in export.manifest.runtimes:
                yield Candidate(name, each, export)


def _open(
    candidate: Candidate, source: str, overrides: Overrides, placement: Placement, reason: str
) -> ServableRanker:
    if candidate.export is None:
        from farrank_runtimes.torch_runtime import dtype_of, open_torch

        dtype, device = dtype_of(candidate.precision), choose_device(placement.device)
        ranker = open_ranker(source, dtype=dtype, device=device, **overrides)
        torch, form = open_torch(ranker, candidate.precision, placement)
        evidence = ranker.aggregator.evidence
        return ServableRanker(ranker.reader, ranker.version, evidence, torch, f"{reason}; {form}")
    manifest = candidate.export.manifest
    exported = open_exported(candidate.export, **overrides)
    parity = next((each for each in manifest.parity if each.runtime == candidate.runtime), None)
    opened = open_export(candidate.runtime, exported, placement)
    return ServableRanker(exported.reader, exported.version, manifest.evidence, opened, reason, parity)


def _reason(candidate: Candidate, runtime: str, unusable: Sequence[str]) -> str:
    """Say in a line why a candidate was chosen."""
    if runtime != AUTO:
        return f"{candidate}, as configured"
    reason = f"{candidate}, the fastest that can serve this ranker here"
    return f"{reason}; faster but not usable here: {', '.join(unusable)}" if unusable else reason


def _nothing_to_serve(
    source: str, device: DeviceType, exports: Sequence[Export], runtime: str, precision: Precision | None
) -> RuntimeAbsent | PrecisionAbsent:
    """Say what is missing, and what would help."""
    served = {each for name, each in fastest_first(device) if runtime in (AUTO, name)}
    if not served:
        return RuntimeAbsent(f"{runtime} does not run on {device}; try --device cpu")
    if precision is not None and precision not in served:
        who = "Farrank" if runtime == AUTO else runtime
        return PrecisionAbsent(f"{who} serves {_enumerated(served)} on {device}, not {precision}")
    for export in exports:
        for each in export.manifest.refused:
            if each.runtime == runtime and precision in (None, export.manifest.precision):
                return RuntimeAbsent(f"{runtime} may not serve {export.folder}: {each.reason}")
    there = ", ".join(export.manifest.name for export in exports) or "none"
    form = "onnx" if runtime == AUTO else RUNTIMES[runtime].reads
    served_by = "" if runtime == AUTO else f" that {runtime} serves"
    helps = (
        f"its exports: {there}; try farrank export {source} --format {form} --precision {precision or 'fp32'}"
    )
    if precision is None:
        return RuntimeAbsent(f"no export of {source} can be served with {runtime} here; {helps}")
    return PrecisionAbsent(f"no export of {source} is in {precision}{served_by}; {helps}")


def _enumerated(precisions: Collection[Precision]) -> str:
    """Write "fp32, fp16 and int8"."""
    *others, last = [each for each in get_args(Precision) if each in precisions]
    return f"{', '.join(others)} and {last}" if others else last
