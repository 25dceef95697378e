"""The machine of a measurement: figures of different machines do not compare."""

import os
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

# Instructions that determine a processor's speed with matrices.
_INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")


def describe_machine() -> str:
    """Name the processor, the number of cores this process may use, the system and the interpreter."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = "1 core" if usable == 1 else f"{usable} cores"
    try:
        # The first processor's entry of Linux's list.
        listed = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0]
    except OSError:
        listed = ""
    pairs = (line.partition(":") for line in listed.splitlines())
    facts = {name.strip(): value.strip() for name, _, value in pairs}
    name = facts.get("model name") or platform.processor() or platform.machine()
    wide = [each for each in _INSTRUCTIONS if each in facts.get("flags", "").split()]
    processor = f"{name} ({', '.join(wide)})" if wide else name
    return f"{processor}, {cores}, {platform.system()}, Python {platform.python_version()}"


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Give each package's version, or say that it is not installed."""
    versions = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions
