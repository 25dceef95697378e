"""Exports of a published model: graphs next to its configuration, written by others' exporters.

optimum and sentence-transformers write `onnx/model*.onnx` and `openvino/openvino_model*.xml`; optimum also
writes both into the model's own folder. A file's name describes its graph. No graph is opened here.
"""

import platform
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from farrank_rankers.errors import ExportError
from farrank_rankers.exports.manifest import ExportPrecision
from farrank_rankers.files.model_files import ModelFiles, ModelKind, is_pointer, pointer_message

PublishedFormat = Literal["onnx", "openvino"]
Instructions = Literal["avx2", "avx512", "avx512_vnni", "arm64"]

# Families that a published graph can serve: the rest of such a ranker has no weights.
SERVED_KINDS: tuple[ModelKind, ...] = ("cross-encoder", "biencoder")

_STEMS: Mapping[PublishedFormat, str] = {"onnx": "model", "openvino": "openvino_model"}
_SUFFIXES: Mapping[str, PublishedFormat] = {".onnx": "onnx", ".xml": "openvino"}

# Words of a file's name, and their precision. O1 to O4 are optimum's graph optimisations; O4 makes fp16 for a
# GPU.
_PRECISIONS: Mapping[str, ExportPrecision] = {
    "fp16": "fp16",
    "f16": "fp16",
    "float16": "fp16",
    "o4": "fp16",
    "int8": "int8",
    "qint8": "int8",
    "quint8": "int8",
    "uint8": "int8",
    "quantized": "int8",
    "fp32": "fp32",
    "f32": "fp32",
    "o1": "fp32",
    "o2": "fp32",
    "o3": "fp32",
    "optimized": "fp32",
}
# Further words of names, and the instructions that a graph was quantized for.
_OTHER_WORDS = frozenset({"avx2", "avx512", "vnni", "arm64", "static", "dynamic"})
# If a runtime reads several graphs of one precision, it serves the first in this order: quantized for more of
# this processor's instructions, optimised more, the shorter name.
_PREFERRED_INSTRUCTIONS: Sequence[Instructions | None] = ("avx512_vnni", "avx512", "avx2", "arm64", None)
_PREFERRED_LEVELS = ("o3", "o2", "o1", "optimized")


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """One published graph. `file` is its path in the model's folder, with slashes.

    `precision` is that of its name, None if unknown. `instructions` are those that it was quantized for, None
    if its name does not say: on a processor without them, sums of int8 may overflow.
    """

    folder: Path
    file: str
    format: PublishedFormat
    precision: ExportPrecision | None
    instructions: Instructions | None = None

    @property
    def path(self) -> Path:
        """The graph's file."""
        return self.folder / self.file

    def __str__(self) -> str:
        """Its name in configurations and messages: "onnx/model_O3.onnx"."""
        return self.file


def find_published(files: ModelFiles) -> list[PublishedFile]:
    """List a model's published graphs with a known precision, the preferred first.

    Only those of cross-encoders and bi-encoders count. Git LFS pointers to graphs do not count.
    Raises: ExportError if a folder cannot be read.
    """
    return graph_files(files) if files.kind in SERVED_KINDS else []


def why_not_served(files: ModelFiles, file: PublishedFile) -> str | None:
    """Explain why a graph cannot be served on this machine, as far as its model and its name tell."""
    if files.kind not in SERVED_KINDS:
        return f"published graphs of a {' or '.join(SERVED_KINDS)} are served, and this is a {files.kind}"
    if file.instructions not in (None, *processor_instructions()):
        return f"quantized for {file.instructions}, which this processor lacks"
    return None


def graph_files(files: ModelFiles) -> list[PublishedFile]:
    """List the graphs in a model's folder of any kind, as `find_published` does."""
    found: list[PublishedFile] = []
    for where in dict.fromkeys((files.folder, files.transformer)):
        for below in (where, where / "onnx", where / "openvino"):
            try:
                names = sorted(path.name for path in below.iterdir() if path.suffix in _SUFFIXES)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise ExportError(f"{below} cannot be read: {error.strerror}") from error
            named = (_described(files.folder, (below / name).relative_to(files.folder)) for name in names)
            known = [each for each in named if each is not None and each.precision is not None]
            found += [each for each in known if not is_pointer(each.path)]
    return sorted(dict.fromkeys(found), key=_preference)


def named_published(files: ModelFiles, name: str) -> PublishedFile:
    """Find the published graph that a configuration names; its name may be any.

    Raises: ExportError naming the file, the problem, and the existing graphs.
    """
    place, there = PurePosixPath(name), ", ".join(map(str, find_published(files))) or "none"
    if files.kind not in SERVED_KINDS:
        raise ExportError(
            f"export_file is {name!r}, and {files.folder} is of kind {files.kind}; published graphs of a "
            f"{' or '.join(SERVED_KINDS)} are served. Leave export_file out to serve the weights, of which "
            "farrank export makes graphs"
        )
    if place.is_absolute() or ".." in place.parts or place.suffix not in _SUFFIXES:
        raise ExportError(
            f"export_file is {name!r}; it must be an .onnx or .xml file inside {files.folder}, of which "
            f"there are: {there}"
        )
    if not (files.folder / place).is_file():
        raise ExportError(f"{files.folder / place} is missing; published graphs there: {there}")
    if is_pointer(files.folder / place):
        raise ExportError(pointer_message(files.folder / place))
    described = _described(files.folder, Path(place))
    return described or PublishedFile(files.folder, place.as_posix(), _SUFFIXES[place.suffix], None)


def _described(folder: Path, place: Path) -> PublishedFile | None:
    """Read a file's name; None if it is not a model's."""
    form = _SUFFIXES[place.suffix]
    stem, *rest = re.split(rf"^{_STEMS[form]}(?=_|$)", place.stem)
    if stem or not rest:
        return None
    words = [word for word in rest[0].lower().split("_") if word]
    unknown = [word for word in words if word not in _PRECISIONS and word not in _OTHER_WORDS]
    precisions = [_PRECISIONS[word] for word in words if word in _PRECISIONS]
    precision: ExportPrecision | None
    if unknown:
        precision = None
    elif "int8" in precisions:
        precision = "int8"
    else:
        precision = precisions[0] if precisions else "fp32"
    return PublishedFile(folder, place.as_posix(), form, precision, _instructions(words))


def _instructions(words: Collection[str]) -> Instructions | None:
    if "avx512" in words:
        return "avx512_vnni" if "vnni" in words else "avx512"
    return "avx2" if "avx2" in words else "arm64" if "arm64" in words else None


def _preference(each: PublishedFile) -> tuple[int, int, int, str]:
    words = each.path.stem.lower().split("_")
    level = next((rank for rank, word in enumerate(_PREFERRED_LEVELS) if word in words), 9)
    return _PREFERRED_INSTRUCTIONS.index(each.instructions), level, len(each.file), each.file


def processor_instructions() -> frozenset[Instructions]:
    """List the instructions of this processor that graphs are quantized for."""
    if platform.machine().lower() in ("arm64", "aarch64"):
        return frozenset({"arm64"})
    import torch

    able = torch.cpu.get_capabilities()
    found: set[Instructions] = set()
    if able.get("avx2"):
        found.add("avx2")
    if able.get("avx512_f"):
        found.add("avx512")
    if able.get("avx512_vnni") or able.get("avx_vnni"):
        found.add("avx512_vnni")
    return frozenset(found)
