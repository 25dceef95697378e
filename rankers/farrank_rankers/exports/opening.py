"""Open an export to serve it, checked against its checksums, its ranker and what is asked of it."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from farrank_rankers.chunking import chunk_count
from farrank_rankers.errors import ExportError, SpecError
from farrank_rankers.exports.checksums import checksum
from farrank_rankers.exports.folder import Export, find_export
from farrank_rankers.family import (
    LateInteractionOptions,
    ParadePretrOptions,
    ParadeQueryOptions,
    ParadeRandOptions,
)
from farrank_rankers.files.model_files import SPEC_FILE
from farrank_rankers.overrides import Overrides
from farrank_rankers.reader import Reader
from farrank_rankers.sources import open_reader, reader_and_files
from farrank_rankers.version import content_version

# What an artifact's scores depend on, beside its weights.
_TEXTS = (SPEC_FILE, "config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json")
_WEIGHTS = ".safetensors"

# Families whose aggregator has a table of positions for chunks, which the ranker in torch is held to.
_PLACE_CHUNKS = (ParadeRandOptions, ParadePretrOptions, ParadeQueryOptions, LateInteractionOptions)

# Backbones whose kind of attention follows from the longest input, in the graph for good.
_LENGTH_DECIDES = frozenset({"big_bird"})


@dataclass(frozen=True, slots=True, eq=False)
class Exported:
    """An export with the half of its ranker that reads text; `version` is the ranker's, in torch and here."""

    export: Export
    reader: Reader
    version: str


def open_exported(artifact: Path, name: str, **overrides: Unpack[Overrides]) -> Exported:
    """Open an artifact's export by its name, "onnx-fp32" say. Every file is read once and its checksum taken.

    Raises: ExportError if there is none, a file of it changed, or the ranker did since; SpecError if an
    override asks for more than the export was made for.
    """
    export = find_export(artifact, name)
    export.verify()
    check_current(export, artifact)
    made_for = open_reader(artifact)
    reader, files = reader_and_files(artifact, overrides)
    check_within(made_for, reader)
    version = content_version(
        reader.spec, reader.tokenizer.files, files.config, export.manifest.weights_digest
    )
    return Exported(export, reader, version)


def source_files(artifact: Path) -> Iterable[str]:
    """Name the files of an artifact that its scores depend on."""
    texts = [name for name in _TEXTS if (artifact / name).is_file()]
    return texts + sorted(path.name for path in artifact.glob(f"*{_WEIGHTS}"))


def check_current(export: Export, artifact: Path) -> None:
    """Refuse an export whose ranker is no longer the one it was made of.

    Weights may be left out where an export alone is to be served.
    Raises: ExportError naming the file that changed.
    """
    manifest = export.manifest
    for name, expected in manifest.sources.items():
        path = artifact / name
        if not path.exists() and path.suffix == _WEIGHTS:
            continue
        try:
            changed = checksum(path) != expected
        except OSError as error:
            raise ExportError(f"{path} cannot be read: {error.strerror}") from error
        if changed:
            raise ExportError(
                f"{export.folder} is stale: {path} changed since; farrank export {artifact} --format "
                f"{manifest.format} --precision {manifest.precision} --force makes it anew"
            )


def check_within(made_for: Reader, asked: Reader) -> None:
    """Refuse what the ranker in torch may be told to do and a graph made before cannot.

    Raises: SpecError naming the field.
    """
    then, now = made_for.spec, asked.spec
    for field in ("options", "max_query_tokens", "pad_query_to"):
        if getattr(then, field) != getattr(now, field):
            raise SpecError(
                f"{field} is {getattr(now, field)!r}; the export was made for {getattr(then, field)!r}: "
                "serve the ranker with torch, or export one that has it"
            )
    exactly = asked.backbone.architecture in _LENGTH_DECIDES
    longest, limit = asked.max_input_tokens, made_for.max_input_tokens
    if longest > limit or (exactly and longest != limit):
        raise SpecError(
            f"chunking.window is {now.chunking.window}, which makes inputs of up to {longest} tokens; the "
            f"export was made for {'just' if exactly else 'at most'} {limit}"
        )
    chunks = [chunk_count(spec.chunking, spec.chunking.max_document_tokens) for spec in (then, now)]
    if isinstance(now.options, _PLACE_CHUNKS) and chunks[1] > chunks[0]:
        raise SpecError(
            f"chunking splits a document into up to {chunks[1]} chunks; the export was made for at most "
            f"{chunks[0]}"
        )
