"""The steps from a ranker to an export in its artifact, in order."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Unpack

from farrank_exporters.int8 import leave_out, quantize
from farrank_exporters.optimum_exporter import chosen_exporter, trace_with_optimum
from farrank_exporters.optimum_here import AskedExporter
from farrank_exporters.parity import BeyondBound, measure, reference
from farrank_exporters.texts import SampleTexts
from farrank_exporters.trace import OPSET, trace_ranker
from farrank_rankers.errors import ExportError
from farrank_rankers.exports.export_folder import (
    EXPORTS,
    MANIFEST,
    NO_ENSEMBLES,
    Export,
    ExportedRanker,
    checksums,
    source_files,
    writing_export,
)
from farrank_rankers.exports.manifest import (
    ExportFormat,
    ExportManifest,
    ExportParity,
    ExportPrecision,
    Quantization,
    RefusedRuntime,
    export_name,
)
from farrank_rankers.files.model_files import DIFFERENCE_FILE, SPEC_FILE, lists_members, locate
from farrank_rankers.files.open import Overrides, open_ranker
from farrank_rankers.files.save import save_ranker
from farrank_rankers.package_versions import package_versions
from farrank_rankers.ranker import Ranker
from farrank_runtimes.runtime import (
    DeviceAbsent,
    DeviceLost,
    OutOfMemory,
    Placement,
    PrecisionAbsent,
    Runtime,
    RuntimeAbsent,
)
from farrank_runtimes.runtime_table import RUNTIMES, check_here, open_export, readers_of


@contextmanager
def artifact_of(
    source: str, out: Path | None, **overrides: Unpack[Overrides]
) -> Iterator[tuple[Ranker, Path]]:
    """Open a ranker with the overrides of `open_ranker`, and give the artifact that holds it.

    Without `out` the source must be an artifact. Otherwise an artifact of the ranker is written to `out`, and
    kept only if the block raises nothing; an existing artifact of the same ranker is used.
    Raises: ExportError if the artifact cannot be placed there; whatever opening the source raises.
    """
    revision, download = overrides.get("revision"), overrides.get("download") or False
    folder = locate(source, revision=revision, download=download).folder
    if lists_members(folder):
        raise ExportError(f"{source} cannot be exported: {NO_ENSEMBLES}")
    if out is None:
        if not (folder / SPEC_FILE).is_file() or (folder / DIFFERENCE_FILE).is_file():
            raise ExportError(f"--out is missing: {source} is not an artifact, which an export needs")
        yield open_ranker(folder), folder
        return
    ranker = open_ranker(source, **overrides)
    out = out.resolve()  # "." has no name, and ".." not its own
    if (out / SPEC_FILE).is_file():
        standing = open_ranker(out)
        if standing.version != ranker.version:
            raise ExportError(
                f"--out {out}: holds ranker {standing.version}, but {source} is {ranker.version}"
            )
        yield standing, out
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ExportError(f"--out {out}: must be a new or an empty folder, or an artifact of {source}")
    if out == Path.cwd():  # renaming another folder to it would leave the caller in a deleted one
        raise ExportError(
            f"--out {out}: is the current folder; it must be another, or an artifact of {source}"
        )
    # In the same parent folder, so that the rename stays inside one file system.
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.", ignore_cleanup_errors=True) as scratch:
        building = Path(scratch, out.name)
        save_ranker(ranker, building)
        yield ranker, building
        building.rename(out)


# Called as each step begins: its description, the number of steps done, and the total.
Progress = Callable[[str, int, int], None]

# The packages whose versions can change an export's graphs and figures.
_PACKAGES = """
farrank torch transformers optimum optimum-onnx onnx onnxscript onnxruntime openvino nncf
""".split()  # noqa: SIM905


def export_ranker(
    ranker: Ranker,
    artifact: Path,
    form: ExportFormat,
    precision: ExportPrecision,
    *,
    measured: SampleTexts,
    calibration: SampleTexts,
    served_by: Sequence[str] | None = None,
    replace_existing: bool = False,
    allow_drift: bool = False,
    unasked: bool = False,
    exporter: AskedExporter = "auto",
    progress: Progress = lambda text, done, total: None,
) -> Export:
    """Export a ranker, opened in fp32 from an artifact, into that artifact.

    `measured` are the texts of the parity report, `calibration` the different texts that calibrate int8.
    `served_by` names the runtimes to export for; None means all that read the format.
    `exporter` names what traces the encoder; torch always traces the aggregator.
    With `unasked` it must keep the bounds of an export that nobody asked for (see `bounds_for`).
    In int8 each runtime has its own graph, and a runtime whose graph is beyond its bound is left out. With
    `allow_drift` it is kept and the manifest records the drift, unless a score is not a number.
    Raises: ExportError if the export exists and is not to be replaced, a dependency is missing, the model
    cannot be traced, or its scores are beyond their bound (in int8: with every runtime); the artifact stays
    as it was.
    """
    runtimes = runtimes_for(form, precision, served_by)
    traced_by = chosen_exporter(exporter, ranker)
    if traced_by == "optimum" and precision == "fp16":
        raise ExportError(
            "--exporter optimum: it writes fp16 only on a GPU; --exporter torch writes it anywhere"
        )
    name = export_name(form, precision)
    queries = len(measured.queries)
    counter = itertools.count()
    total = (3 if precision == "int8" else 2) + queries + len(runtimes) * (1 + queries)

    def step(text: str) -> None:
        progress(text, min(next(counter), total), total)

    trace = trace_ranker if traced_by == "torch" else trace_with_optimum
    with writing_export(artifact, name, replace=replace_existing) as folder, ExitStack() as scratch:
        sources = checksums(source_files(artifact))
        quantized: dict[str, Quantization] = {}
        ways: Mapping[str, Iterator[Quantization]] = {}
        if precision == "int8":
            traced = Path(scratch.enter_context(TemporaryDirectory(dir=folder)))
            graphs = trace(ranker, traced, progress=step)
            step("quantizing the encoder")
            graphs, quantized, ways = quantize(graphs, traced, folder, ranker.reader, calibration, runtimes)
        else:
            graphs = trace(ranker, folder, half=precision == "fp16", progress=step)
        manifest = ExportManifest(
            format=form,
            precision=precision,
            # The runtime rounds to bf16: the graph is that of fp32.
            stored_as="fp32" if precision == "bf16" else precision,
            family=ranker.spec.family,
            evidence=ranker.aggregator.evidence,
            opset=OPSET,
            graphs=graphs,
            runtimes=runtimes,
            weights_digest=ranker.weights_digest,
            source_version=ranker.version,
            created_with=versions(),
            sources=sources,
            checksums=checksums(filter(Path.is_file, folder.iterdir())),
            exporter=traced_by,
        )
        expected = reference(ranker, measured, step)

        def measured_with(runtime: str) -> ExportParity | BeyondBound:
            step(f"opening the export with {runtime}")
            exported = ExportedRanker(
                Export(folder, manifest), ranker.reader, ranker.version, ranker.encodings_version
            )
            opened = open_runtime(runtime, exported)
            try:
                return measure(
                    ranker,
                    opened,
                    measured,
                    expected,
                    precision,
                    step,
                    unasked=unasked,
                    to_the_end=allow_drift,
                )
            except BeyondBound as error:
                return error

        parity: list[ExportParity] = []
        refused: list[RefusedRuntime] = []
        drifting: list[str] = []
        for runtime in runtimes:
            found = measured_with(runtime)
            while isinstance(found, BeyondBound) and runtime in ways:
                step(f"quantizing the encoder in another way, because {found}")
                other = next(ways[runtime], None)
                if other is None:
                    break
                quantized[runtime] = other
                found = measured_with(runtime)
            if isinstance(found, ExportParity):
                parity.append(found)
            elif allow_drift and found.parity is not None:
                parity.append(found.parity)
                drifting.append(runtime)
            else:
                refused.append(RefusedRuntime(runtime, str(found), found.parity))
        if not parity or (refused and precision != "int8"):
            reasons = "; ".join(each.reason for each in refused)
            raise ExportError(
                f"the export is beyond its bound: {reasons}; nothing was written. --allow-drift writes it "
                "anyway, unless scores are not numbers"
            )
        left_out = {each.runtime for each in refused}
        if left_out:
            graphs["encoder"] = leave_out(folder, graphs["encoder"], left_out)
        scratch.close()
        manifest = replace(
            manifest,
            graphs=graphs,
            runtimes=tuple(name for name in runtimes if name not in left_out),
            checksums=checksums(folder.iterdir()),
            parity=tuple(parity),
            refused=tuple(refused),
            drifting=tuple(drifting),
            quantized=tuple(each for name, each in quantized.items() if name not in left_out),
        )
        (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return Export(artifact / EXPORTS / name, manifest)


def versions() -> dict[str, str]:
    """Give the versions of the packages that can change an export."""
    return package_versions(_PACKAGES)


def runtimes_for(
    form: ExportFormat, precision: ExportPrecision, only: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Name the runtimes that will serve an export. All must be installed: only measured runtimes serve it.

    Raises: ExportError with the command that installs what is missing.
    """
    names = tuple(name for name in readers_of(form, precision) if only is None or name in only)
    for name in names:
        try:
            check_here(name, precision, _placement(name))
        except (RuntimeAbsent, PrecisionAbsent, DeviceAbsent) as error:
            raise ExportError(
                f"{form} in {precision} is measured with {name}, which cannot run here: {error}"
            ) from error
    return names


def open_runtime(name: str, exported: ExportedRanker) -> Runtime:
    """Open a runtime on an export that is finished or still being written.

    Raises: ExportError if the runtime cannot be opened here, or refuses the graph; OutOfMemory, DeviceLost.
    """
    try:
        return open_export(name, exported, _placement(name))
    except (RuntimeAbsent, PrecisionAbsent, DeviceAbsent) as error:
        raise ExportError(f"the export cannot be measured with {name}: {error}") from error
    except (OutOfMemory, DeviceLost):
        raise
    except Exception as error:  # ONNX Runtime's exceptions have no other base
        # OpenVINO's first lines name its own source files.
        reason = str(error).strip().splitlines()
        raise ExportError(f"{name} refuses the graph: {reason[-1] if reason else repr(error)}") from error


def _placement(name: str) -> Placement:
    """Choose the CPU, where the ranker itself runs, unless the runtime needs a GPU."""
    return Placement(device="cpu") if "cpu" in RUNTIMES[name].ranks else Placement()
