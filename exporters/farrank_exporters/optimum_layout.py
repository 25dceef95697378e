"""Exports in optimum's layout: a plain graph in a folder that optimum and sentence-transformers also load."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from farrank_exporters.optimum_exporter import (
    QUANTIZED_FILES,
    best_instructions,
    check_here,
    chosen_exporter,
    export_plain,
    optimise,
    quantize,
)
from farrank_exporters.optimum_here import AskedExporter, Level, PlainPrecision, optimum_flag
from farrank_exporters.parity import reference
from farrank_exporters.plain_graph import why_not_plain
from farrank_exporters.published import keep, measure_files
from farrank_exporters.texts import SampleTexts
from farrank_rankers.errors import ExportError
from farrank_rankers.exports.manifest import Exporter, ExportPrecision
from farrank_rankers.exports.published_files import PublishedFile
from farrank_rankers.exports.published_parity import MEASURED, MeasuredFile, read_measured
from farrank_rankers.family import BiEncoderOptions, CrossEncoderOptions
from farrank_rankers.files.model_files import ModelFiles, locate
from farrank_rankers.files.open import Overrides, open_ranker, reader_and_files
from farrank_rankers.files.saved_modules import CONFIG, MODULES, listed_modules
from farrank_rankers.ranker import Ranker


@dataclass(frozen=True, slots=True)
class PlainExport:
    """A graph in its folder, its tracer, and a comparison of its scores with those of the weights.

    `skipped` gives the reasons why something could not be measured here.
    """

    graph: Path
    precision: ExportPrecision
    exporter: Exporter
    version: str
    measured: Sequence[MeasuredFile]
    skipped: dict[str, str]


def export_layout(
    source: str,
    out: Path | None,
    precision: PlainPrecision,
    texts: SampleTexts,
    *,
    exporter: AskedExporter = "auto",
    level: Level | None = None,
    replace_existing: bool = False,
    allow_drift: bool = False,
    download: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> PlainExport:
    """Write a cross-encoder's or bi-encoder's plain graph, and measure it like a published one.

    `out` becomes a folder with the model's configuration, its tokenizer and the graph under `onnx/`; a folder
    that already holds the same model gets only the graph. Without `out` the graph goes into the source's own
    folder. `level` is one of optimum's optimisations. In int8 optimum quantizes for this processor.
    Raises: ExportError if the ranker has no plain graph, the folder cannot take it, optimum is needed and not
    installed, or scores are beyond their bound without `allow_drift`; then the folder stays as it was.
    Whatever opening the source raises.
    """
    if precision == "int8" and level is not None:
        raise ExportError(f"--optimize {level}: int8 quantizes the unoptimised graph; give only one of both")
    files = ModelFiles.find(locate(source, download=download))
    ranker = open_ranker(source)
    _check_plain(ranker, files)
    below = files.transformer.relative_to(files.folder) if _is_published(files) else Path()
    graph = below / "onnx" / _file_name(precision, level)
    # optimum's optimisations and quantization know the operators that its own tracer writes.
    needs_optimum = optimum_flag(precision, level)
    if needs_optimum is not None:
        check_here(needs_optimum)
    traced_by = chosen_exporter(exporter, ranker, prefers_optimum=needs_optimum is not None)
    place = _place(source, files, out)
    standing = _holds_files(place)
    with _near(place) as building:
        _write_model(ranker, files, building)
        if standing:
            _check_same_model(place, building, below, source)
            _check_graphs(place, below, ranker, source, graph, replace_existing=replace_existing)
        (building / graph).parent.mkdir(parents=True)
        progress(f"tracing with {traced_by}")
        export_plain(traced_by, ranker, building / graph)
        config: Any = ranker.encoder.backbone.config
        if level is not None:
            progress(f"optimising the graph, {level}")
            optimise(building / graph, level, config)
        if precision == "int8":
            progress("quantizing the graph")
            quantize(building / graph, best_instructions())
        computed_in: ExportPrecision = "fp16" if level == "O4" else precision
        file = PublishedFile(building, graph.as_posix(), "onnx", computed_in)
        expected = reference(ranker, texts, progress)
        measured, skipped = measure_files([file], str(building), ranker, texts, expected, progress)
        _check_bounds(
            [each for each in measured if each.precision == computed_in], skipped, allow_drift=allow_drift
        )
        _move(building, place, graph, measured, beside_others=standing)
    return PlainExport(place / graph, computed_in, traced_by, ranker.version, measured, skipped)


def _is_published(files: ModelFiles) -> bool:
    return files.kind in ("cross-encoder", "biencoder") and not files.is_adapted


def _check_plain(ranker: Ranker, files: ModelFiles) -> None:
    """Raises: ExportError if other libraries cannot load the ranker's model unchanged."""
    reason = why_not_plain(ranker)
    options = ranker.spec.options
    if reason is None and isinstance(options, BiEncoderOptions) and options.truncate_dim is not None:
        reason = f"truncate_dim is {options.truncate_dim}, which such a folder cannot express"
    if isinstance(options, CrossEncoderOptions) and options.template and not _is_published(files):
        reason = reason or "its pairs have a template, which such a folder cannot express"
    if reason is not None:
        raise ExportError(
            f"--layout optimum: {files.folder} has no plain graph: {reason}; --layout farrank exports it"
        )


def _file_name(precision: PlainPrecision, level: Level | None) -> str:
    """Name a graph as optimum and sentence-transformers do. Raises: ExportError as `best_instructions`."""
    if precision == "int8":
        return QUANTIZED_FILES[best_instructions()]
    return "model.onnx" if level is None else f"model_{level}.onnx"


def _place(source: str, files: ModelFiles, out: Path | None) -> Path:
    """Give the folder for the graph. Raises: ExportError if none is named, or it is not a folder."""
    if out is None:
        if not (_is_published(files) and Path(source).is_dir()):
            raise ExportError(
                f"--out is missing: {source} is not a folder of a published model, which could hold the graph"
            )
        return files.folder.resolve()
    if out.exists() and not out.is_dir():
        raise ExportError(f"--out {out}: is not a folder")
    return out.resolve()


def _holds_files(place: Path) -> bool:
    """Tell whether a folder exists and holds any file that is not hidden."""
    return place.is_dir() and any(not each.name.startswith(".") for each in place.iterdir())


@contextmanager
def _near(place: Path) -> Iterator[Path]:
    """Give a temporary folder whose files can be renamed into `place`, or that can become `place`.

    It is made inside an existing folder, which may be a mount point, so renaming stays in one file system.
    """
    inside = place if place.is_dir() else place.parent
    try:
        inside.mkdir(parents=True, exist_ok=True)
        scratch = TemporaryDirectory(dir=inside, prefix=f".{place.name}.", ignore_cleanup_errors=True)
    except OSError as error:
        raise ExportError(f"{inside} cannot be written: {error.strerror}") from error
    with scratch:
        building = Path(scratch.name, place.name)
        building.mkdir()
        yield building


def _check_same_model(place: Path, building: Path, below: Path, source: str) -> None:
    """Raises: ExportError if a folder holds another model than the one built, or other prompts or modules."""
    for of_model in (below / "config.json", below / "tokenizer.json"):
        standing = place / of_model
        if not standing.is_file() or standing.read_bytes() != (building / of_model).read_bytes():
            raise ExportError(
                f"--out {place}: its {of_model} is not that of {source}; it must be new or empty, or hold "
                "the same model"
            )
    reader, built = (reader_and_files(folder, Overrides())[0] for folder in (place, building))
    if reader.spec.options != built.spec.options:
        raise ExportError(
            f"--out {place}: its prompts or modules are not those of {source}; it must be new or empty, or "
            "hold the same model"
        )


def _check_graphs(
    place: Path, below: Path, ranker: Ranker, source: str, graph: Path, *, replace_existing: bool
) -> None:
    """Raises: ExportError if the graph's path is taken, or a folder holds other weights or their graphs."""
    if (place / graph).exists() and not replace_existing:
        raise ExportError(f"{place / graph} exists; --force replaces it")
    folder = (place / graph).parent
    if (folder.exists() and not folder.is_dir()) or (place / graph).is_dir():
        raise ExportError(f"{place / graph} cannot be written: another file or folder is in its place")
    of_others = {
        each.file
        for each in read_measured(place)
        if each.weights_digest != ranker.weights_digest
        and each.file != graph.as_posix()
        and (place / each.file).is_file()
    }
    has_weights = any((place / below).glob("*.safetensors"))
    if has_weights and open_ranker(place).weights_digest != ranker.weights_digest:
        of_others.add("model.safetensors")
    if of_others:
        raise ExportError(
            f"--out {place}: {', '.join(sorted(of_others))} has other weights than {source}; it must be new "
            "or empty, or hold the same model"
        )


def _move(
    building: Path, place: Path, graph: Path, measured: Sequence[MeasuredFile], *, beside_others: bool
) -> None:
    """Move a graph to its place, with the model's files if they are missing there."""
    if not beside_others:
        keep(building, measured)
        if not place.is_dir():
            building.rename(place)
            return
        # The folder may be the caller's current one or a mount point, so it is filled, not replaced.
        for path in building.iterdir():
            path.replace(place / path.name)
        return
    # The report comes first because it can fail; a report of a missing graph is ignored.
    keep(place, measured)
    folder = (place / graph).parent
    folder.mkdir(exist_ok=True)
    # Weights in a separate file come first: the graph refers to them.
    made = sorted((building / graph).parent.iterdir(), key=lambda each: each.name == graph.name)
    for path in made:
        path.replace(folder / path.name)
    for weights in folder.glob(f"{graph.name}[._]data"):
        if weights.name not in {each.name for each in made}:  # the replaced graph's weights
            weights.unlink()


# The suffixes of a model's own files: texts, and settings of its modules.
_TEXTS = (".json", ".jinja", ".txt", ".model", ".md")


def _write_model(ranker: Ranker, files: ModelFiles, folder: Path) -> None:
    """Write all of a model but its weights: a published model's files, or an artifact's in that format."""
    if _is_published(files):
        # Only the modules' folders belong to the model: others may be checkpoints or exports.
        modules = listed_modules(files.folder) if (files.folder / MODULES).is_file() else []
        inside = {str(each["path"]) for each in modules}.intersection(
            path.name for path in files.folder.iterdir() if path.is_dir()
        )
        for below in ("", *sorted(inside)):
            for path in (files.folder / below).iterdir():
                aside = path.name == MEASURED or path.name.endswith(".index.json")
                if path.is_file() and path.suffix in _TEXTS and not aside:
                    (folder / below).mkdir(exist_ok=True)
                    shutil.copyfile(path, folder / below / path.name)
        return
    config: Any = ranker.encoder.backbone.config
    of_model = dict(ranker.backbone_config) | {"architectures": [type(ranker.encoder.backbone).__name__]}
    ranker.reader.tokenizer.files.write(folder)
    options = ranker.spec.options
    if isinstance(options, BiEncoderOptions):
        kinds = [("", "Transformer"), ("1_Pooling", "Pooling")]
        kinds += [("2_Normalize", "Normalize")] if options.normalize else []
        modules = [
            {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for place, (path, kind) in enumerate(kinds)
        ]
        pooling = {
            "word_embedding_dimension": config.hidden_size,
            "pooling_mode_cls_token": options.pooling == "cls",
            "pooling_mode_mean_tokens": options.pooling == "mean",
            "pooling_mode_lasttoken": options.pooling == "last",
        }
        (folder / "1_Pooling").mkdir()
        _write_json(folder / "1_Pooling" / "config.json", pooling)
        _write_json(folder / MODULES, modules)
        prompts = {"query": options.query_prefix, "document": options.document_prefix}
        similarity = "cosine" if options.normalize else "dot"
        _write_json(folder / CONFIG, {"prompts": prompts, "similarity_fn_name": similarity})
    elif isinstance(options, CrossEncoderOptions):
        of_model |= {"id2label": config.id2label, "label2id": config.label2id}
        # By default sentence-transformers makes a probability of a logit. Releases 4 and 5 read this setting
        # from config.json, newer ones from their own file.
        said: dict[str, Any] = {"activation_fn": "torch.nn.modules.linear.Identity"}
        of_model |= {"sentence_transformers": dict(said)}
        if options.query_prefix:
            said |= {"prompts": {"query": options.query_prefix}, "default_prompt_name": "query"}
        _write_json(folder / CONFIG, said)
    _write_json(folder / "config.json", of_model)


def _write_json(path: Path, values: Any) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _check_bounds(measured: Sequence[MeasuredFile], skipped: Mapping[str, str], *, allow_drift: bool) -> None:
    """Raises: ExportError if no runtime keeps the graph's bound, or none can run it."""
    if not measured:
        raise ExportError(f"nothing here can run the graph to measure it: {'; '.join(skipped.values())}")
    if not any(each.beyond is None or (allow_drift and each.parity is not None) for each in measured):
        reasons = "; ".join(str(each.beyond) for each in measured)
        raise ExportError(
            f"the export is beyond its bound: {reasons}; nothing was written. --allow-drift writes it "
            "anyway, unless scores are not numbers"
        )
