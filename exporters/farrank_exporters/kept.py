"""Rankers that are exported once for this machine and kept: what a later start serves at once.

They lie in the user's cache, by content: a ranker's files and spec, the packages that export it and what the
processor can do. Another of these makes another export.
"""

import fcntl
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

import torch

from farrank_exporters.export import Progress, artifact_of, export_ranker, versions
from farrank_exporters.texts import Texts
from farrank_rankers.errors import ExportError, RankerError
from farrank_rankers.exports.export_folder import EXPORTS, Export, cache_folder, checksum, find_exports
from farrank_rankers.exports.manifest import ExportPrecision
from farrank_rankers.files.model_files import Location, ModelFiles, locate
from farrank_rankers.files.open import Overrides, open_reader
from farrank_rankers.json_values import read_json, read_value
from farrank_runtimes.runtime_table import RUNTIMES, fastest_first

_REFUSED = "refused.json"
# What a ranker's scores may depend on, whoever saved it.
_FILES = ("*.json", "*/*.json", "*.jinja", "*/*.jinja", "*.safetensors", "*/*.safetensors")


@dataclass(frozen=True, slots=True)
class Kept:
    """A ranker's fastest export that keeps its bound, or why there is none.

    `source` opens the ranker from now on: with an export the kept artifact, which has no weights.
    """

    source: str
    export: Export | None
    refused: dict[str, str]


@dataclass(frozen=True, slots=True)
class Form:
    """A runtime that could serve a ranker, and in which precision."""

    runtime: str
    precision: ExportPrecision

    def __str__(self) -> str:
        return f"{self.runtime} in {self.precision}"


def faster_than_torch() -> list[Form]:
    """List what may serve a ranker faster than torch on a CPU, the fastest first."""
    torch_rank = RUNTIMES["torch"].ranks["cpu"]["fp32"]
    return [
        Form(name, precision)
        for name, precision in fastest_first("cpu")
        if RUNTIMES[name].reads == "onnx" and RUNTIMES[name].ranks["cpu"][precision] < torch_rank
    ]


def kept_export(
    source: str,
    forms: Sequence[Form],
    texts: tuple[Texts, Texts],
    *,
    folder: Path | None = None,
    progress: Progress = lambda text, done, total: None,
    waiting: Callable[[], None] = lambda: None,
    **overrides: Unpack[Overrides],
) -> Kept:
    """Find a ranker's export in the cache, or make the first of `forms` that keeps its bound.

    `texts` are those that it is measured and calibrated with. What was refused once is not tried again; what
    is damaged is made anew. Of several processes one exports, and the others wait; `waiting` hears of it.
    What is there is served also from a cache that cannot be written.
    Raises: SourceError and the like if the ranker cannot be opened; OSError if the cache cannot be written.
    """
    location = locate(source, revision=overrides.get("revision"), download=overrides.get("download") or False)
    name = re.sub(r"[^\w.-]+", "--", location.name)
    place = (folder or cache_folder()) / EXPORTS / f"{name}-{_key(source, location, forms, overrides)}"
    found = _read(place)
    if found is None:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _alone(place, waiting):
            found = _read(place)  # by now another process may have made it
            if found is None:
                for left in (place, *place.parent.glob(f".{place.name}.*/")):  # damaged, or cut off by a kill
                    shutil.rmtree(left, ignore_errors=True)
                _make(source, place, forms, texts, progress, overrides)
                found = find_exports(place), _read_refused(place)
    exports, refused = found
    return Kept(str(place) if exports else source, exports[0] if exports else None, refused)


def _read(place: Path) -> tuple[list[Export], dict[str, str]] | None:
    """Read a kept export and what was refused; None if there is none, or it is not as it was written."""
    try:
        exports = find_exports(place)
        for export in exports:
            export.verify()
            export.verify_sources()
        return exports, _read_refused(place)
    except RankerError:
        return None


def _read_refused(place: Path) -> dict[str, str]:
    path = place / _REFUSED
    refused: dict[str, str] = read_value(Mapping[str, str], read_json(path), str(path), ExportError)
    return refused


def _make(
    source: str,
    place: Path,
    forms: Sequence[Form],
    texts: tuple[Texts, Texts],
    progress: Progress,
    overrides: Overrides,
) -> None:
    refused: dict[str, str] = {}
    measured, calibration = texts
    with artifact_of(source, place, **overrides) as (ranker, artifact):
        for form in forms:

            def step(text: str, done: int, total: int, form: Form = form) -> None:
                progress(f"{form}: {text}", done, total)

            try:
                export_ranker(
                    ranker,
                    artifact,
                    "onnx",
                    form.precision,
                    measured=measured,
                    calibration=calibration,
                    served_by=[form.runtime],
                    progress=step,
                )
                break
            except ExportError as error:
                refused[str(form)] = str(error)
        for weights in artifact.glob("*.safetensors"):  # nothing that is served from here reads them
            weights.unlink()
        (artifact / _REFUSED).write_text(json.dumps(refused, indent=2), encoding="utf-8")


@contextmanager
def _alone(place: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the place until left; processes that end let go of it, however they end."""
    with place.with_name(f".{place.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _key(source: str, location: Location, forms: Sequence[Form], overrides: Overrides) -> str:
    """Hash all that decides on an export. Weights are read once, at the speed of the disk."""
    # Defaults are no part of the files, and may be others in another version of Farrank.
    spec = open_reader(source, **overrides).spec.to_json()
    processor = {name: able for name, able in torch.cpu.get_capabilities().items() if able is True}
    digest = hashlib.sha256(
        json.dumps([spec, list(map(str, forms)), versions(), processor], sort_keys=True).encode()
    )
    files: ModelFiles | None = ModelFiles.find(location)
    while files is not None:
        for path in sorted({each for form in _FILES for each in files.folder.glob(form)}):
            digest.update(f"{path.relative_to(files.folder)} {checksum(path)}".encode())
        files = files.base
    return digest.hexdigest()[:16]
