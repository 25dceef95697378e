"""Rankers exported once for this machine and cached, so that later starts serve them at once.

The user's cache holds them by content: a ranker's files and spec, the exporting packages and the processor's
capabilities. A change of any of these makes a new export.
"""

import fcntl
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Unpack

import torch

from farrank_exporters.bounded import BeyondBounds, Bounds, run_bounded
from farrank_exporters.export import Progress, artifact_of, export_ranker, versions
from farrank_exporters.texts import SampleTexts
from farrank_rankers.errors import ExportError, RankerError
from farrank_rankers.exports.export_folder import EXPORTS, Export, cache_folder, checksum, find_exports
from farrank_rankers.exports.manifest import ExportPrecision
from farrank_rankers.files.model_files import Location, ModelFiles, locate
from farrank_rankers.files.open import Overrides, open_reader
from farrank_rankers.json_values import read_json, read_value
from farrank_runtimes.runtime_table import RUNTIMES, fastest_first

_REFUSED = "refused.json"
# The files that a ranker's scores may depend on, whatever library saved it.
_FILES = ("*.json", "*/*.json", "*.jinja", "*/*.jinja", "*.safetensors", "*/*.safetensors")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an export was refused. If it went beyond a bound, that one is `memory` or `seconds`."""

    reason: str
    memory: int | None = None
    seconds: float | None = None

    def stands(self, bounds: Bounds | None) -> bool:
        """Whether the export would be refused again: it is not for a bound, or that bound is not wider."""
        if self.memory is None and self.seconds is None:
            return True
        return bounds is not None and (
            bounds.memory <= self.memory if self.memory is not None else bounds.seconds <= (self.seconds or 0)
        )


@dataclass(frozen=True, slots=True)
class ExportChoice:
    """A ranker's fastest export that keeps its bound, or the reasons why there is none.

    `source` is where to open the ranker: with an export the cached artifact, which has no weights.
    """

    source: str
    export: Export | None
    refused: dict[str, str]


@dataclass(frozen=True, slots=True)
class Form:
    """A runtime that could serve a ranker, and its precision."""

    runtime: str
    precision: ExportPrecision

    def __str__(self) -> str:
        return f"{self.runtime} in {self.precision}"


def faster_than_torch() -> list[Form]:
    """List the forms that may serve a ranker faster than torch on a CPU, the fastest first."""
    torch_rank = RUNTIMES["torch"].ranks["cpu"]["fp32"]
    return [
        Form(name, precision)
        for name, precision in fastest_first("cpu")
        if RUNTIMES[name].reads == "onnx" and RUNTIMES[name].ranks["cpu"][precision] < torch_rank
    ]


def kept_export(
    source: str,
    forms: Sequence[Form],
    texts: tuple[SampleTexts, SampleTexts],
    *,
    folder: Path | None = None,
    bounds: Bounds | None = None,
    progress: Progress = lambda text, done, total: None,
    waiting: Callable[[], None] = lambda: None,
    **overrides: Unpack[Overrides],
) -> ExportChoice:
    """Find a ranker's export in the cache, or make the first of `forms` that keeps its bound.

    `texts` measure and calibrate it. A form that was refused is not tried again; a damaged export is made
    again. If several processes need it, one exports and the others wait; `waiting` is called before the wait.
    An existing export is served also from a read-only cache.
    Each form is exported in a process of its own within `bounds`; without any, in this one. If there is no
    export because a form went beyond a bound, all are tried again once that bound is wider.
    Raises: SourceError and the like if the ranker cannot be opened; OSError if the cache cannot be written.
    """
    location = locate(source, revision=overrides.get("revision"), download=overrides.get("download") or False)
    name = re.sub(r"[^\w.-]+", "--", location.name)
    place = (folder or cache_folder()) / EXPORTS / f"{name}-{_key(source, location, forms, overrides)}"
    found = _read(place, bounds)
    if found is None:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _alone(place, waiting):
            found = _read(place, bounds)  # another process may have made it meanwhile
            if found is None:
                _make(source, place, forms, texts, bounds, progress, overrides)
                found = find_exports(place), _read_refused(place)
    exports, refused = found
    reasons = {form: each.reason for form, each in refused.items()}
    return ExportChoice(str(place) if exports else source, exports[0] if exports else None, reasons)


def _read(place: Path, bounds: Bounds | None) -> tuple[list[Export], dict[str, Refusal]] | None:
    """Read a cached export and the refused forms.

    None if there is none, it was changed or damaged, or wider bounds may give one.
    """
    try:
        exports, refused = find_exports(place), _read_refused(place)
        for export in exports:
            export.verify()
            export.verify_sources()
    except RankerError:
        return None
    # An export that stands is served, whatever bounds refused a faster one.
    stands = exports or all(each.stands(bounds) for each in refused.values())
    return (exports, refused) if stands else None


def _read_refused(place: Path) -> dict[str, Refusal]:
    path = place / _REFUSED
    refused: dict[str, Refusal] = read_value(Mapping[str, Refusal], read_json(path), str(path), ExportError)
    return refused


def _make(
    source: str,
    place: Path,
    forms: Sequence[Form],
    texts: tuple[SampleTexts, SampleTexts],
    bounds: Bounds | None,
    progress: Progress,
    overrides: Overrides,
) -> None:
    refused: dict[str, Refusal] = {}
    for form in forms:

        def step(text: str, done: int, total: int, form: Form = form) -> None:
            progress(f"{form}: {text}", done, total)

        work = partial(_export, source, place, form, texts, overrides)
        try:
            _clear(place)
            shutil.rmtree(place, ignore_errors=True)  # damaged, or of a form that was refused in the end
            if bounds is None:
                work(step)
            else:
                run_bounded(work, bounds, step)
            break
        except ExportError as error:
            limit = {}
            if bounds is not None and isinstance(error, BeyondBounds):
                limit = {error.exceeded: getattr(bounds, error.exceeded)}
            refused[str(form)] = Refusal(str(error), **limit)
    _clear(place)
    place.mkdir(exist_ok=True)
    written = {form: asdict(each) for form, each in refused.items()}
    (place / _REFUSED).write_text(json.dumps(written, indent=2), encoding="utf-8")


def _clear(place: Path) -> None:
    """Remove the remains of work that was killed."""
    for left in place.parent.glob(f".{place.name}.*/"):
        shutil.rmtree(left, ignore_errors=True)


def _export(
    source: str,
    place: Path,
    form: Form,
    texts: tuple[SampleTexts, SampleTexts],
    overrides: Overrides,
    progress: Progress,
) -> None:
    """Export a ranker in one form. The place then holds its artifact without weights, or nothing."""
    measured, calibration = texts
    with artifact_of(source, place, **overrides) as (ranker, artifact):
        export_ranker(
            ranker,
            artifact,
            "onnx",
            form.precision,
            measured=measured,
            calibration=calibration,
            served_by=[form.runtime],
            unasked=True,
            progress=progress,
        )
        for weights in artifact.glob("*.safetensors"):  # exports serve without them
            weights.unlink()


@contextmanager
def _alone(place: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Lock the place for the block; the lock also ends with the process, however that ends."""
    with place.with_name(f".{place.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _key(source: str, location: Location, forms: Sequence[Form], overrides: Overrides) -> str:
    """Hash all that determines an export. Weights are read once, at the speed of the disk."""
    # The files do not hold defaults, which may differ in another version of Farrank.
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
