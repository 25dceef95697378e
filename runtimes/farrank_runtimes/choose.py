"""Choice of a ranker's runtime: the configured one, or the fastest that can serve it."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, get_args

from farrank_rankers.errors import ExportError, SpecError
from farrank_rankers.exports.export_folder import Export, find_exports, open_exported
from farrank_rankers.exports.manifest import ExportParity
from farrank_rankers.exports.published_files import (
    PublishedFile,
    find_published,
    named_published,
    processor_instructions,
)
from farrank_rankers.exports.published_parity import MeasuredFile, read_measured
from farrank_rankers.family import EvidenceKind
from farrank_rankers.files.model_files import SPEC_FILE, ModelFiles, is_pointer, lists_members, locate
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

if TYPE_CHECKING:
    from farrank_runtimes.published_runtime import OpenedPublished


@dataclass(frozen=True, slots=True)
class RuntimeCandidate:
    """A runtime and the export that it would serve, Farrank's or a published one.

    torch has no export, because it runs the ranker itself. `by_report`: a published graph is tried this early
    because its measured parity is within its bound.
    """

    runtime: str
    precision: Precision
    export: Export | PublishedFile | None = None
    by_report: bool = False

    def __str__(self) -> str:
        """The names of both: "openvino with onnx-int8", "onnx with onnx/model_O3.onnx"."""
        if self.export is None:
            return f"{self.runtime} {self.precision}"
        name = self.export.manifest.name if isinstance(self.export, Export) else str(self.export)
        return f"{self.runtime} with {name}"


@dataclass(frozen=True, slots=True)
class PublishedGraphs:
    """A model's published graphs, the preferred first, and their measurements.

    `named`: the configuration names the only one. `weights`: the model's own weights may serve, too. `opened`
    are the graphs read so far, by name: several runtimes may be tried with one.
    """

    files: Sequence[PublishedFile] = ()
    measured: Sequence[MeasuredFile] = ()
    named: bool = False
    weights: bool = True
    opened: "dict[str, OpenedPublished]" = field(default_factory=dict)

    def serving(self, runtime: str, precision: Precision) -> list[PublishedFile]:
        """List the graphs whose names say that a runtime can serve them in a precision."""
        forms = RUNTIMES[runtime].published
        found = [
            each
            for each in self.files
            if each.format in forms and _served_in(each, runtime, precision, self.named)
        ]
        # OpenVINO's own graphs before those that it converts.
        return sorted(found, key=lambda each: each.format != runtime)

    def was_close(self, file: PublishedFile, runtime: str, precision: Precision) -> bool:
        """Whether a graph's measured parity is within its bound; changes of its file are not checked."""
        return any(
            (each.file, each.runtime, each.precision, each.beyond) == (file.file, runtime, precision, None)
            for each in self.measured
        )


def _served_in(file: PublishedFile, runtime: str, precision: Precision, named: bool) -> bool:
    if runtime != "openvino":
        return file.precision == precision
    if file.format == "onnx":
        # Graphs optimised or quantized for ONNX Runtime have many of its own operators.
        return precision in ("fp32", "bf16") and (named or file.path.stem == "model")
    return precision == "int8" if file.precision == "int8" else precision in ("fp32", "bf16")


NOTHING_PUBLISHED = PublishedGraphs()


@dataclass(frozen=True, slots=True, eq=False)
class ServableRanker:
    """A ranker with its runtime loaded.

    `version` is the ranker's, independent of the runtime; a published graph's is that of its own files.
    `encodings_version` is the same for rankers that differ only in the limit on a document's tokens.
    `reason` is the reason for this runtime, in a line. `parity` compares an export's scores with those of
    torch in fp32; None for torch, and for a published graph that was not measured.
    """

    reader: Reader
    version: str
    encodings_version: str
    evidence: EvidenceKind
    runtime: Runtime
    reason: str
    parity: ExportParity | None = None


def open_ranker_runtime(
    source: str,
    overrides: Overrides,
    *,
    runtime: str = AUTO,
    precision: Precision | None = None,
    placement: Placement | None = None,
    export_file: str | None = None,
) -> ServableRanker:
    """Open a ranker with the given runtime; AUTO takes the fastest, in any exported precision.

    Among a published model's graphs AUTO takes those in fp32 and those with a measured parity within the
    bound; it takes others if their `precision` is configured, or if the model has no weights. `export_file`
    names the graph to serve. Serving an export never reads the ranker's weights. Only torch packs batches.
    Raises: RuntimeAbsent, PrecisionAbsent, PackingAbsent, DeviceAbsent, each with a remedy; SourceError,
    WeightsError if the ranker cannot be opened, ExportError if an export is damaged or stale, SpecError if
    an override does not fit.
    """
    placement = placement or Placement()
    if placement.packing == "packed":
        if runtime not in (AUTO, "torch"):
            raise PackingAbsent(f"only torch packs batches; {runtime} pads them")
        runtime = "torch"
    if export_file is not None and runtime == "torch":
        raise RuntimeAbsent(f"torch serves a model's weights, and export_file names the graph {export_file}")
    if runtime != AUTO:
        check_here(runtime, precision or "fp32", placement)
        if placement.device is None and list(RUNTIMES[runtime].ranks) == ["cpu"]:
            placement = replace(placement, device="cpu")
    device: DeviceType = "cpu" if choose_device(placement.device).type == "cpu" else "cuda"
    exports: list[Export] = []
    published = NOTHING_PUBLISHED
    if runtime != "torch":  # torch can serve a ranker whose exports are damaged
        location = locate(
            source,
            revision=overrides.get("revision"),
            download=overrides.get("download") or False,
            export_file=export_file,
        )
        exports = find_exports(location.folder) if (location.folder / SPEC_FILE).is_file() else []
        if not lists_members(location.folder):
            published = _published(ModelFiles.find(location), export_file)
        if published.named and location.revision:  # its files are in the cache now
            overrides = overrides | Overrides(download=False, revision=location.revision)
        if published.named:
            published = _as_it_is(published, source, overrides)
    found = list(candidates(device, exports, runtime, precision, published))
    if not found:
        raise _nothing_to_serve(source, device, exports, runtime, precision, published)
    unusable: dict[str, str] = {}
    refused: Exception | None = None
    for candidate in found:  # grows during the loop
        passed_over: tuple[type[Exception], ...] = (RuntimeAbsent, PrecisionAbsent, SpecError)
        if isinstance(candidate.export, PublishedFile) and not published.named:
            passed_over += (ExportError,)  # its user did not choose it
        try:
            is_served_here = False
            check_here(candidate.runtime, candidate.precision, placement)
            is_served_here = True
            others = [f"{other} ({why})" for other, why in unusable.items() if other != str(candidate)]
            reason = _reason(candidate, published.named or runtime != AUTO, others)
            return _open(candidate, source, overrides, placement, reason, published)
        except _ChangedSinceMeasured as error:
            found.append(replace(candidate, by_report=False))
            unusable[str(candidate)] = str(error)
        except passed_over as error:
            # A named graph or runtime is never replaced; otherwise the last candidate's error is raised, of
            # those that this machine can serve if there are any. A runtime may have several published graphs.
            refused = error if is_served_here else refused
            is_last = candidate is found[-1]
            if is_last or not (runtime == AUTO or isinstance(candidate.export, PublishedFile)):
                raise (refused or error) from None
            unusable[str(candidate)] = str(error)
    raise AssertionError("the last candidate was neither opened nor refused")


class _ChangedSinceMeasured(Exception):
    """The report that selected a published graph is of another file."""


def _published(files: ModelFiles, export_file: str | None) -> PublishedGraphs:
    """Find a model's published graphs: the named one, or those for this processor."""
    if export_file is not None:
        return PublishedGraphs(
            (named_published(files, export_file),), read_measured(files.folder), True, False
        )
    here = processor_instructions()
    found = [each for each in find_published(files) if each.instructions in (None, *here)]
    if not found:
        return NOTHING_PUBLISHED
    weights = any(not is_pointer(path) for path in files.transformer.glob("*.safetensors"))
    return PublishedGraphs(found, read_measured(files.folder), weights=weights)


def _as_it_is(published: PublishedGraphs, source: str, overrides: Overrides) -> PublishedGraphs:
    """Read the named graph: its real precision counts, not that of its name.

    Raises: as `open_published`.
    """
    from farrank_runtimes.published_runtime import open_published

    (file,) = published.files
    opened = open_published(file, source, overrides)
    file = replace(file, precision=opened.graph.precision)
    return replace(published, files=(file,), opened={file.file: opened})


def candidates(
    device: DeviceType,
    exports: Sequence[Export],
    runtime: str,
    precision: Precision | None,
    published: PublishedGraphs = NOTHING_PUBLISHED,
) -> Iterator[RuntimeCandidate]:
    """List the candidates for a ranker on a type of device, the fastest first.

    Published graphs come last, unless they or their precision are configured, their precision is exact, or
    their measured parity is within the bound. On a GPU torch itself computes in bf16, which has fewer bits
    than fp16.
    """
    exact = ("fp32", "fp16") if device == "cuda" else ("fp32",)
    untrusted: list[RuntimeCandidate] = []
    for name, each in fastest_first(device):
        if runtime not in (AUTO, name) or precision not in (None, each):
            continue
        if RUNTIMES[name].reads is None and published.weights:
            yield RuntimeCandidate(name, each)
        for export in exports:
            if export.manifest.precision == each and name in export.manifest.runtimes:
                yield RuntimeCandidate(name, each, export)
        for file in published.serving(name, each):
            if precision is not None or each in exact:
                yield RuntimeCandidate(name, each, file)
            elif published.was_close(file, name, each):
                yield RuntimeCandidate(name, each, file, by_report=True)
            else:
                untrusted.append(RuntimeCandidate(name, each, file))
    yield from untrusted


def _open(
    candidate: RuntimeCandidate,
    source: str,
    overrides: Overrides,
    placement: Placement,
    reason: str,
    published: PublishedGraphs,
) -> ServableRanker:
    if isinstance(candidate.export, PublishedFile):
        return _open_published(candidate, candidate.export, source, overrides, placement, reason, published)
    if candidate.export is None:
        from farrank_runtimes.torch_runtime import dtype_of, open_torch

        dtype, device = dtype_of(candidate.precision), choose_device(placement.device)
        ranker = open_ranker(source, dtype=dtype, device=device, **overrides)
        torch, form = open_torch(ranker, candidate.precision, placement)
        evidence = ranker.aggregator.evidence
        versions = ranker.version, ranker.encodings_version
        return ServableRanker(ranker.reader, *versions, evidence, torch, f"{reason}; {form}")
    manifest = candidate.export.manifest
    exported = open_exported(candidate.export, **overrides)
    parity = next((each for each in manifest.parity if each.runtime == candidate.runtime), None)
    opened = open_export(candidate.runtime, exported, placement)
    versions = exported.version, exported.encodings_version
    return ServableRanker(exported.reader, *versions, manifest.evidence, opened, reason, parity)


def _open_published(
    candidate: RuntimeCandidate,
    file: PublishedFile,
    source: str,
    overrides: Overrides,
    placement: Placement,
    reason: str,
    published: PublishedGraphs,
) -> ServableRanker:
    from farrank_runtimes.published_runtime import open_published, open_published_runtime

    if file.file not in published.opened:
        published.opened[file.file] = open_published(file, source, overrides)
    opened = published.opened[file.file]
    measured = next(
        (
            each
            for each in published.measured
            if (each.file, each.runtime, each.precision)
            == (file.file, candidate.runtime, candidate.precision)
            and each.version == opened.measured_as
        ),
        None,
    )
    if measured is None and candidate.by_report:
        raise _ChangedSinceMeasured(f"{file.path} changed since it was measured")
    if measured and measured.beyond and not published.named:
        raise PrecisionAbsent(
            f"{file.path} is beyond its bound: {measured.beyond}; rankers.NAME.export_file serves it by name"
        )
    runtime = open_published_runtime(opened, candidate.runtime, candidate.precision, placement)
    stored = "" if opened.graph.stored_as in _SAID.get(opened.graph.precision, ()) else opened.graph.stored_as
    said = f", weights stored as {stored}" if stored else ""
    if measured is None:
        said += "; parity unknown: it was not compared with the weights"
    elif measured.beyond:
        said += f"; beyond its bound: {measured.beyond}"
    return ServableRanker(
        opened.reader,
        opened.version,
        opened.encodings_version,
        opened.evidence,
        runtime,
        f"{reason}{said}",
        measured.parity if measured else None,
    )


# The dtypes in which weights of a precision are stored.
_SAID = {
    "fp32": ("float", "f32"),
    "fp16": ("float16",),
    "int8": ("int8", "uint8", "i8", "u8"),
}


def _reason(candidate: RuntimeCandidate, is_named: bool, unusable: Sequence[str]) -> str:
    """Write the reason for a candidate in a line."""
    if is_named:
        reason, better = f"{candidate}, as configured", "preferred"
    else:
        reason, better = f"{candidate}, the fastest that can serve this ranker here", "faster"
    return f"{reason}; {better} but not usable here: {', '.join(unusable)}" if unusable else reason


def _nothing_to_serve(
    source: str,
    device: DeviceType,
    exports: Sequence[Export],
    runtime: str,
    precision: Precision | None,
    published: PublishedGraphs,
) -> RuntimeAbsent | PrecisionAbsent:
    """Write the error with the missing part and the remedy."""
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
    if published.named or (published.files and not published.weights):
        there = ", ".join(map(str, published.files))
        return PrecisionAbsent(
            f"{'export_file' if published.named else 'of the published graphs'} {there}: none is served by "
            f"{'a runtime here' if runtime == AUTO else runtime} on {device}"
            + (f" in {precision}" if precision else "")
        )
    names = [export.manifest.name for export in exports] + [str(each) for each in published.files]
    there = ", ".join(names) or "none"
    form = "onnx" if runtime == AUTO else RUNTIMES[runtime].reads
    served_by = "" if runtime == AUTO else f" that {runtime} serves"
    helps = (
        f"its exports: {there}; try farrank export {source} --format {form} --precision {precision or 'fp32'}"
    )
    if precision is None:
        return RuntimeAbsent(f"no export of {source} can be served with {runtime} here; {helps}")
    return PrecisionAbsent(f"no export of {source} is in {precision}{served_by}; {helps}")


def _enumerated(precisions: Collection[Precision]) -> str:
    """Join names: "fp32, fp16 and int8"."""
    *others, last = [each for each in get_args(Precision) if each in precisions]
    return f"{', '.join(others)} and {last}" if others else last
