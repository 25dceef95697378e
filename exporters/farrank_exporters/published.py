"""Measure the graphs that a published model ships with its weights, and keep the reports in its folder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from farrank_exporters.parity import BeyondBound, Scores, measure, reference
from farrank_exporters.texts import SampleTexts
from farrank_rankers.errors import ExportError, RankerError
from farrank_rankers.exports.manifest import ExportParity
from farrank_rankers.exports.published_files import PublishedFile, find_published, why_not_served
from farrank_rankers.exports.published_parity import MeasuredFile, read_measured, write_measured
from farrank_rankers.files.model_files import ModelFiles, locate
from farrank_rankers.files.open import Overrides, open_ranker
from farrank_rankers.ranker import Ranker
from farrank_runtimes.choose import PublishedGraphs
from farrank_runtimes.published_runtime import OpenedPublished, open_published, open_published_runtime
from farrank_runtimes.runtime import DeviceAbsent, Placement, PrecisionAbsent, RuntimeAbsent
from farrank_runtimes.runtime_table import check_here, fastest_first


@dataclass(frozen=True, slots=True)
class Measurement:
    """The reports on a model's published graphs, the file that keeps them, and what could not be measured."""

    measured: list[MeasuredFile]
    kept_in: Path
    skipped: dict[str, str]


def measure_published(
    source: str, texts: SampleTexts, progress: Callable[[str], None] = lambda text: None
) -> Measurement:
    """Score texts with the weights in torch and fp32, then with every published graph that this CPU can run.

    Each graph is measured with every runtime and precision that may serve it. Earlier reports of graphs that
    cannot be measured here are kept.
    Raises: ExportError if there is no published graph, or the report cannot be kept; SourceError,
    WeightsError if the model cannot be opened.
    """
    files = ModelFiles.find(locate(source))
    there = find_published(files)
    if not there:
        raise ExportError(
            f"{files.folder} has no published graphs: no onnx/model*.onnx or openvino/openvino_model*.xml "
            "of a cross-encoder or bi-encoder"
        )
    ranker = open_ranker(source)
    measured, skipped = measure_files(
        there, source, ranker, texts, reference(ranker, texts, progress), progress
    )
    return Measurement(measured, keep(files.folder, measured), skipped)


def measure_files(
    files: Sequence[PublishedFile],
    source: str,
    ranker: Ranker,
    texts: SampleTexts,
    expected: Sequence[Scores],
    progress: Callable[[str], None],
) -> tuple[list[MeasuredFile], dict[str, str]]:
    """Measure the graphs of a model's folder against a ranker with the model's weights, with its reader.

    `expected` is the ranker's own `reference`. The second value gives the reason for each file, or file with
    runtime and precision, that could not be measured.
    """
    measured: list[MeasuredFile] = []
    model = ModelFiles.find(locate(source))
    skipped = {str(each): why for each in files if (why := why_not_served(model, each)) is not None}
    able = PublishedGraphs([each for each in files if str(each) not in skipped])
    opened: dict[str, OpenedPublished] = {}
    for runtime, precision in fastest_first("cpu"):
        for file in able.serving(runtime, precision):
            try:
                check_here(runtime, precision, Placement(device="cpu"))
                opened[file.file] = opened.get(file.file) or open_published(file, source, Overrides())
                read_alike = replace(opened[file.file], reader=ranker.reader)
                loaded = open_published_runtime(read_alike, runtime, precision, Placement(device="cpu"))
            except (RankerError, RuntimeAbsent, PrecisionAbsent, DeviceAbsent) as error:
                skipped[f"{file} with {runtime} in {precision}"] = str(error)
                continue
            try:
                parity: ExportParity | None = measure(
                    ranker,
                    loaded,
                    texts,
                    expected,
                    precision,
                    lambda text, file=file: progress(f"{file}: {text}"),  # type: ignore[misc]
                    to_the_end=True,
                )
                beyond = None
            except BeyondBound as error:
                parity, beyond = error.parity, str(error)
            finally:
                loaded.close()
            version = opened[file.file].measured_as
            measured.append(
                MeasuredFile(file.file, runtime, precision, version, ranker.weights_digest, parity, beyond)
            )
    return measured, skipped


def keep(folder: Path, measured: Sequence[MeasuredFile]) -> Path:
    """Add reports to a model's folder, replacing earlier ones of the same graphs; return the file.

    Raises: ExportError if the file cannot be read or written.
    """
    new = {(each.file, each.runtime, each.precision) for each in measured}
    old = [each for each in read_measured(folder) if (each.file, each.runtime, each.precision) not in new]
    return write_measured(folder, [*old, *measured])
