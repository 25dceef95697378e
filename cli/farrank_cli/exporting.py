"""Exports within commands: each step is shown, and an interrupt ends them between two steps."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Unpack

from safetensors import SafetensorError, safe_open

from farrank_cli.exit_codes import missing_extra
from farrank_cli.export_limits import ExportLimits
from farrank_cli.terminal import Progress
from farrank_cli.terminated import sigterm_interrupts
from farrank_rankers.backbone_facts import STATIC
from farrank_rankers.errors import WeightsError
from farrank_rankers.exports.export_folder import find_exports
from farrank_rankers.files.model_files import SPEC_FILE, Location, ModelFiles, lists_members, locate
from farrank_rankers.files.open import Overrides
from farrank_runtimes.devices import choose_device
from farrank_server.config.schema import RankerConfig, ServerConfig

if TYPE_CHECKING:
    from farrank_exporters.export import Progress as Steps

_log = logging.getLogger(__name__)

_GIB = 2**30
# The default bound of an export's memory: this multiple of the weights in fp32, and these bytes for the
# libraries. all-MiniLM-L6-v2 in int8 stays below 1.05 GiB, and its bound is 1.25 GiB.
_TIMES_WEIGHTS, _BESIDE = 3, _GIB


@contextmanager
def steps_shown() -> Iterator["Steps"]:
    """Give a callback that shows an export's steps, and raises KeyboardInterrupt after an interrupt.

    A total of 0 means unknown.
    """
    steps = Progress("steps", every_s=0)

    def progress(text: str, done: int, total: int) -> None:
        # torch's exporter and the runtimes call Python from C++, which may swallow an interrupt.
        interrupts.raise_swallowed()
        if done == 0:
            steps.begin("steps", total or None)
        steps(done, text)

    with sigterm_interrupts() as interrupts:
        try:
            yield progress
        finally:
            steps.end()


def exported_rankers(config: ServerConfig, limits: ExportLimits) -> ServerConfig:
    """Serve every ranker from its fastest export that keeps its bound, made now or cached.

    A ranker that needs no export, or can have none, is left as it is, and the log says why.
    Raises: CommandError if the export extra is not installed; whatever opening a ranker raises; OSError if
    the cache cannot be written.
    """
    rankers = {
        name: _exported(f"ranker {name}", ranker, config.device.name, limits)
        for name, ranker in config.rankers.items()
    }
    return replace(config, rankers=rankers)


def _exported(who: str, ranker: RankerConfig, device: str | None, limits: ExportLimits) -> RankerConfig:
    torch_serves = ranker.runtime == "torch" or ranker.packing == "packed"
    if torch_serves or ranker.export_file is not None:
        how = "torch is" if torch_serves else f"{ranker.export_file} is"
        _log.info("%s is not exported: %s configured to serve it", who, how)
        return ranker
    changes = ranker.overrides
    runtime = None if ranker.runtime == "auto" else ranker.runtime
    source = exported_source(who, ranker.source, limits, device, runtime, ranker.precision, **changes)
    if source == ranker.source:
        return ranker
    # The artifact already has the overrides.
    return RankerConfig(
        source,
        runtime=ranker.runtime,
        precision=ranker.precision,
        packing=ranker.packing,
        depth=ranker.depth,
    )


def exported_source(
    who: str,
    source: str,
    limits: ExportLimits,
    device: str | None = None,
    runtime: str | None = None,
    precision: str | None = None,
    texts: Sequence[str] = (),
    **overrides: Unpack[Overrides],
) -> str:
    """Find or make a ranker's fastest export that keeps its bound within the limits, and return its source.

    A new one is calibrated and measured on `texts`, or on Python's documentation if they are too few.
    Without an export the source is `source` itself. The log says what was found, made or refused.
    Raises: as `exported_rankers`.
    """
    revision, download = overrides.get("revision"), overrides.get("download") or False
    if reason := _no_export(source, device, revision, download=download):
        _log.info("%s is not exported: %s", who, reason)
        return source
    try:
        from farrank_exporters.bounded import Bounds
        from farrank_exporters.kept import faster_than_torch, kept_export
        from farrank_exporters.texts import divide, enough, python_documentation
    except ModuleNotFoundError as error:
        raise missing_extra("--export auto", error, "export") from error
    memory = limits.memory_gib
    if memory is None:
        weights = _weights_bytes(locate(source, revision=revision, download=download))
        memory = (_TIMES_WEIGHTS * weights + _BESIDE) / _GIB
    bounds = Bounds(round(memory * _GIB), 60 * limits.minutes)
    _log.info("%s: an export may take at most %s in each precision", who, bounds)
    with steps_shown() as progress:
        kept = kept_export(
            source,
            [
                each
                for each in faster_than_torch()
                if runtime in (None, each.runtime) and precision in (None, each.precision)
            ],
            divide(texts if enough(texts) else python_documentation(), "the documents"),
            bounds=bounds,
            progress=progress,
            waiting=lambda: _log.info("%s: another process exports it; waiting", who),
            **overrides,
        )
    for refused, reason in kept.refused.items():
        _log.warning("%s is not served by %s: %s", who, refused, reason)
    if kept.export is None:
        _log.warning("%s is served without an export: none keeps its bounds", who)
    else:
        _log.info("%s: %s in %s", who, kept.export.manifest.name, kept.source)
    return kept.source


def _no_export(source: str, device: str | None, revision: str | None, *, download: bool) -> str | None:
    """Say why a ranker needs no export of this machine, or can have none; None if it can be exported."""
    if choose_device(device).type != "cpu":
        return "--export auto makes exports only for a CPU; `farrank export` makes TensorRT's"
    location = locate(source, revision=revision, download=download)
    folder = location.folder
    if lists_members(folder):
        return "it is an ensemble; `farrank export` exports its members"
    if (folder / SPEC_FILE).is_file() and find_exports(folder):
        return "its artifact holds exports"
    files = ModelFiles.find(location)
    if not any(files.transformer.glob("*.safetensors")):
        return "it has no weights here"
    if files.config.get("model_type") == STATIC:
        return "static embeddings are looked up, which an export does not speed up"
    return None


def _weights_bytes(location: Location) -> int:
    """Count the bytes of a model's weights in fp32; of a difference and its base, the larger one's."""
    most, files = 0, ModelFiles.find(location)
    found: ModelFiles | None = files
    while found is not None:
        values = 0
        for path in {*found.folder.glob("*.safetensors"), *found.transformer.glob("*.safetensors")}:
            try:
                with safe_open(path, framework="numpy") as tensors:
                    shapes = [tensors.get_slice(name).get_shape() for name in tensors.keys()]  # noqa: SIM118
            except SafetensorError as error:
                raise WeightsError(f"{path}: is damaged: {error}") from error
            values += sum(map(prod, shapes))
        most, found = max(most, 4 * values), found.base
    return most
