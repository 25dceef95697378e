"""`farrank doctor`: this machine's capabilities, the installed packages, and advice on speed."""

import argparse
import contextlib
import json
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from farrank_cli.exit_codes import DONE
from farrank_cli.flags import flag
from farrank_cli.terminal import counted
from farrank_rankers.package_versions import package_version
from farrank_runtimes import machine

if TYPE_CHECKING:
    from farrank_cli.advice import Advice
    from farrank_runtimes.installed import FoundKernel, FoundRuntime, Gpus
    from farrank_runtimes.runtime_table import DeviceType

# The server's packages besides its runtimes.
_PACKAGES = ("grpcio", "transformers", "tokenizers", "numpy")


@dataclass(frozen=True, slots=True)
class Search:
    """The dependencies of Lucene indexes: Java and pyserini. `missing` lists problems with their remedies."""

    java: str | None
    java_home: str | None
    pyserini: str | None
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cache:
    """A folder that later starts read. `entries` counts exports or models; sizes are in bytes."""

    name: str
    folder: str
    entries: int
    size: int
    free: int | None
    writable: bool


@dataclass(frozen=True, slots=True)
class Findings:
    """All findings, as printed by `--json`.

    `server` says why no ranker can be served; None if one can.
    """

    farrank: str
    python: str
    system: str
    packages: Mapping[str, str | None]
    processor: machine.Processor
    memory: machine.Memory
    server: str | None
    gpus: "Gpus | None"
    runtimes: "Sequence[FoundRuntime]"
    attention: "Sequence[FoundKernel]"
    search: Search | None
    caches: Sequence[Cache]
    advice: "Sequence[Advice]"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add = partial(flag, parser)
    add("--json", "print JSON")


def run(args: argparse.Namespace) -> int:
    """Examine the machine and the installed packages, and print them. Nothing is changed, loaded or sent."""
    found = examine()
    print(json.dumps(asdict(found), indent=2) if args.json else "\n".join(_told(found)))
    return DONE


def examine() -> Findings:
    """Examine everything. Without the server's packages only the machine is described."""
    processor, memory = machine.processor(), machine.memory()
    packages = {name: package_version(name) for name in _PACKAGES}
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    base = (version("farrank"), platform.python_version(), system, packages, processor, memory)
    try:
        from farrank_cli.advice import advise
        from farrank_rankers.exports.export_folder import EXPORTS, MANIFEST, cache_folder
        from farrank_runtimes.installed import find_attention, find_gpus, find_runtimes
    except ModuleNotFoundError as error:
        helps = f"pip install 'farrank[server]' (no module {error.name!r})"
        return Findings(*base, helps, None, (), (), None, (), ())
    gpus = find_gpus()
    devices: tuple[DeviceType, ...] = ("cpu", "cuda") if gpus.devices else ("cpu",)
    runtimes, attention = find_runtimes(devices), find_attention()
    kept = _cache("exports", cache_folder() / EXPORTS, f"*/{EXPORTS}/*/{MANIFEST}")
    hub = _cache("hub", _hub_folder(), "models--*")
    advice = advise(processor, gpus, runtimes, attention, kept.entries)
    return Findings(*base, None, gpus, runtimes, attention, _search(), (kept, hub), advice)


def _search() -> Search:
    """Find the dependencies of a Lucene index. Neither Java nor pyserini is started."""
    from farrank_lucene.jvm import child_environment, java_home
    from farrank_settings.errors import ConfigError

    missing: list[str] = []
    home: Path | None = None
    release: str | None = None
    try:
        home = java_home()
        said = (home / "release").read_text(encoding="utf-8", errors="replace")
        found = re.search(r'^JAVA_VERSION="([^"]+)"', said, re.MULTILINE)
        release = found[1] if found else None
        child_environment()
    except ConfigError as error:
        missing += error.problems
    except OSError as error:
        missing.append(f"{home}: {error.strerror}")
    return Search(release, str(home) if home else None, package_version("pyserini"), tuple(missing))


def _hub_folder() -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def _cache(name: str, folder: Path, entries: str) -> Cache:
    size = 0
    for parent, _, files in os.walk(folder):
        for each in files:
            with contextlib.suppress(OSError):  # the file was just removed
                status = os.lstat(os.path.join(parent, each))
                size += status.st_size
    there = next(each for each in (folder, *folder.parents) if each.exists())
    free = None
    with contextlib.suppress(OSError):
        disk = os.statvfs(there)
        free = disk.f_bavail * disk.f_frsize
    count = sum(1 for _ in folder.glob(entries))
    return Cache(name, str(folder), count, size, free, os.access(there, os.W_OK))


def _told(found: Findings) -> Iterator[str]:
    """Write the findings for people; each line begins with its subject."""
    processor, memory = found.processor, found.memory
    yield f"farrank {found.farrank}, Python {found.python}, {found.system}"
    yield "packages: " + ", ".join(f"{name} {each or '–'}" for name, each in found.packages.items())
    yield (
        f"processor: {processor.model}, {processor.cores} of {processor.present} cores usable; "
        f"{', '.join(processor.instructions) or 'no known instructions that speed up rankers'}"
    )
    limit = "" if memory.limit is None else f", the container's limit {_bytes(memory.limit)}"
    yield f"memory: {_bytes(memory.total)}, {_bytes(memory.available)} free{limit}"
    if found.server is not None or found.gpus is None or found.search is None:
        yield f"no ranker can be served: {found.server}"
        return
    yield from _told_gpus(found.gpus)
    for runtime in found.runtimes:
        serves = [f"{device}: {', '.join(able)}" for device, able in runtime.serves.items()]
        said = "; ".join([*serves, *(f"not otherwise: {why}" if serves else why for why in runtime.missing)])
        yield f"runtime {runtime.name}: {runtime.version or 'not installed'}; {said}"
    for kernel in found.attention:
        parts = [kernel.version, kernel.missing or "usable on a GPU"]
        yield f"attention {kernel.name}: {'; '.join(filter(None, parts))}"
    search = found.search
    java = f"Java {search.java} ({search.java_home})" if search.java_home else "no Java"
    pyserini = f"pyserini {search.pyserini}" if search.pyserini else "no pyserini"
    yield f"Lucene: {'; '.join([f'{java}, {pyserini}', *search.missing])}"
    for cache in found.caches:
        what = "export" if cache.name == "exports" else "model"
        rights = "" if cache.writable else ", not writable"
        yield (
            f"cache of {what}s: {cache.folder}, {counted(cache.entries, what)}, {_bytes(cache.size)}, "
            f"{_bytes(cache.free)} free{rights}"
        )
    yield "to make it faster:" + ("" if found.advice else " nothing known")
    yield from (f"- {each.what}: {each.helps}" for each in found.advice)


def _told_gpus(gpus: "Gpus") -> Iterator[str]:
    if gpus.missing:
        driver = f" (driver {gpus.driver})" if gpus.driver else ""
        yield f"GPU: none; {gpus.missing}{driver}"
    for each in gpus.devices:
        yield (
            f"GPU: {each.name}, {_bytes(each.memory)}, compute capability {each.compute_capability}, "
            f"driver {gpus.driver or 'unknown'}, CUDA {gpus.cuda}"
        )


def _bytes(count: int | None) -> str:
    if count is None:
        return "unknown"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
