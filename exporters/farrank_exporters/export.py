"""The steps from a ranker to an export in its artifact, in their order."""

import itertools
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from farrank_exporters.int8 import leave_out, quantize
from farrank_exporters.parity import BeyondBound, Reference, measure, reference
from farrank_exporters.serving import encoder_profiles, open_runtime, runtimes_for
from farrank_exporters.texts import Texts
from farrank_exporters.trace import Traced, trace_ranker
from farrank_rankers.errors import ExportError
from farrank_rankers.exports.export_folder import (
    EXPORTS,
    MANIFEST,
    Export,
    Exported,
    check_free,
    checksums,
    source_files,
    why_not_exportable,
    writing_export,
)
from farrank_rankers.exports.manifest import (
    ExportFormat,
    ExportManifest,
    ExportPrecision,
    Parity,
    Refused,
    export_name,
)
from farrank_rankers.files.location import locate
from farrank_rankers.files.model_files import SPEC_FILE
from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.save import save_ranker
from farrank_rankers.ranker import Ranker


@contextmanager
def artifact_of(source: str, out: Path | None, *, download: bool = False) -> Iterator[tuple[Ranker, Path]]:
    """Open a ranker and give the artifact that holds it.

    Without `out` the source must be an artifact. With it, an artifact of the ranker is written there, and
    stays only if the block raises nothing; an artifact of the same ranker that is there already is used.
    Raises: ExportError if there is no place for the artifact; whatever opening the source raises.
    """
    folder = locate(source, download=download).folder
    reason = why_not_exportable(folder)
    if reason:
        raise ExportError(f"{source} cannot be exported: {reason}")
    if out is None:
        if not (folder / SPEC_FILE).is_file():
            raise ExportError(f"--out is missing: {source} is no artifact, and an export is kept in one")
        yield open_ranker(folder), folder
        return
    ranker = open_ranker(source, download=download)
    if (out / SPEC_FILE).is_file():
        standing = open_ranker(out)
        if standing.version != ranker.version:
            raise ExportError(
                f"--out {out}: holds ranker {standing.version}, and {source} is {ranker.version}"
            )
        yield standing, out
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ExportError(f"--out {out}: must be a new or an empty folder, or an artifact of {source}")
    # A neighbour, so that the rename stays inside one file system.
    out.parent.mkdir(parents=True, exist_ok=True)
    building = out.with_name(f".{out.name}.{secrets.token_hex(4)}.part")
    try:
        save_ranker(ranker, building)
        yield ranker, building
        building.rename(out)
    finally:
        shutil.rmtree(building, ignore_errors=True)


# Told of each step as it begins: what it is, how many steps are done, and how many there are.
Progress = Callable[[str, int, int], None]

# What decides on the graphs and figures of an export.
_PACKAGES = ("farrank", "torch", "transformers", "onnx", "onnxscript", "onnxruntime", "openvino", "nncf")


def export_ranker(
    ranker: Ranker,
    artifact: Path,
    form: ExportFormat,
    precision: ExportPrecision,
    *,
    measured: Texts,
    calibration: Texts,
    replace_existing: bool = False,
    allow_drift: bool = False,
    progress: Progress = lambda text, done, total: None,
) -> Export:
    """Export a ranker, opened in fp32 from an artifact, into that artifact.

    `measured` are the texts of the parity report, `calibration` those of int8, which are others.
    In int8 each runtime has a graph of its own, and one whose graph is beyond its bound is left out. With
    `allow_drift` it serves all the same, and the manifest says so, unless a score is not a number.
    Raises: ExportError if it exists and is not to be replaced, something that it needs is not here, the model
    cannot be traced, or its scores are beyond their bound, in int8 with every runtime; the artifact is left
    as it was.
    """
    runtimes = runtimes_for(form, precision)
    name = export_name(form, precision)
    check_free(artifact / EXPORTS / name, replace_existing)
    sources = checksums(artifact, source_files(artifact))
    queries = len(measured.queries)
    counter = itertools.count()
    total = (3 if precision == "int8" else 2) + queries + len(runtimes) * (1 + queries)

    def step(text: str) -> None:
        progress(text, next(counter), total)

    with writing_export(artifact, name, replace=replace_existing) as folder:
        traced = _write_graphs(ranker, folder, form, precision, calibration, step)
        manifest = ExportManifest(
            format=form,
            precision=precision,
            # bf16 is rounded by the runtime: the graph is that of fp32.
            stored_as="fp32" if precision == "bf16" else precision,
            family=ranker.spec.family,
            evidence=ranker.aggregator.evidence,
            opset=traced.opset,
            graphs=traced.graphs,
            runtimes=runtimes,
            weights_digest=ranker.weights_digest,
            source_version=ranker.version,
            created_with=_versions(),
            sources=sources,
            checksums=_checksums(folder),
        )
        if form == "tensorrt":
            inputs = traced.graphs["encoder"].inputs
            profiles = encoder_profiles(inputs, ranker.reader.max_input_tokens)
            manifest = replace(manifest, profiles=profiles)
        expected = reference(ranker, measured, step)
        parity, refused, drifting = _measure(ranker, Export(folder, manifest), expected, allow_drift, step)
        if not parity or (refused and precision != "int8"):
            reasons = "; ".join(each.reason for each in refused)
            raise ExportError(
                f"the export is beyond its bound: {reasons}; nothing was written. With --allow-drift it is "
                "written all the same, unless scores are not numbers"
            )
        manifest = replace(manifest, parity=parity, drifting=drifting)
        if refused:
            manifest = _without(refused, manifest, folder)
        (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return Export(artifact / EXPORTS / name, manifest)


def _measure(
    ranker: Ranker, export: Export, expected: Reference, allow_drift: bool, progress: Callable[[str], None]
) -> tuple[tuple[Parity, ...], tuple[Refused, ...], tuple[str, ...]]:
    """Compare every runtime with its bound: the reports, who is refused, and who drifts and serves."""
    parity: list[Parity] = []
    refused: list[Refused] = []
    drifting: list[str] = []
    precision = export.manifest.precision
    for name in runtimes_for(export.manifest.format, export.manifest.precision):
        progress(f"opening the export with {name}")
        runtime = open_runtime(name, Exported(export, ranker.reader, ranker.version))
        try:
            parity.append(measure(ranker, runtime, expected, precision, progress, to_the_end=allow_drift))
        except BeyondBound as error:
            if allow_drift and error.parity is not None:
                parity.append(error.parity)
                drifting.append(name)
            else:
                refused.append(Refused(name, str(error), error.parity))
    return tuple(parity), tuple(refused), tuple(drifting)


def _without(refused: Sequence[Refused], manifest: ExportManifest, folder: Path) -> ExportManifest:
    """Take the graphs of refused runtimes out of an export."""
    names = [each.runtime for each in refused]
    graphs = {**manifest.graphs, "encoder": leave_out(folder, manifest.graphs["encoder"], names)}
    return replace(
        manifest,
        graphs=graphs,
        runtimes=tuple(name for name in manifest.runtimes if name not in names),
        refused=tuple(refused),
        checksums=_checksums(folder),
    )


def _checksums(folder: Path) -> dict[str, str]:
    return checksums(folder, (path.name for path in folder.iterdir()))


def _write_graphs(
    ranker: Ranker,
    folder: Path,
    form: ExportFormat,
    precision: ExportPrecision,
    calibration: Texts,
    progress: Callable[[str], None],
) -> Traced:
    """Write the graphs in the precision that they are stored in."""
    if precision != "int8":
        return trace_ranker(ranker, folder, half=precision == "fp16", progress=progress)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        traced = trace_ranker(ranker, Path(scratch), progress=progress)
        progress("quantizing the encoder")
        graphs = quantize(traced.graphs, Path(scratch), folder, ranker.reader, calibration, form)
    return replace(traced, graphs=graphs)


def _versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
