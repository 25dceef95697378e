"""The facts of this machine that determine rankers' speed: its processor, its memory, its GPUs' driver.

They are read from the kernel, so that no package needs to be installed. Systems other than Linux give fewer.
"""

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from farrank_runtimes.cores import usable_cores

# Instructions that speed up rankers, and the kernel's words for them, any of which counts.
INSTRUCTIONS: Mapping[str, tuple[str, ...]] = {
    "avx2": ("avx2",),
    "avx512": ("avx512f",),
    "vnni": ("avx512_vnni", "avx_vnni"),
    "avx512_bf16": ("avx512_bf16",),
    "amx_bf16": ("amx_bf16",),
    "amx_int8": ("amx_int8",),
    "dotprod": ("asimddp",),
    "i8mm": ("i8mm",),
    "bf16": ("bf16",),
    "sve": ("sve",),
}

# The files of a container's memory limit: of control groups version 2, and of version 1.
_MEMORY_LIMITS = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True, slots=True)
class Processor:
    """`cores` counts the cores that this process may use; `present` those of the machine."""

    model: str
    architecture: str
    cores: int
    present: int
    instructions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Memory:
    """In bytes. `limit` is the container's, None without one; values unknown to the system are None."""

    total: int | None
    available: int | None
    limit: int | None


def processor(root: Path = Path("/")) -> Processor:
    """Describe the processor."""
    said = _read(root / "proc/cpuinfo")
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", said, re.MULTILINE)
    flags = set(found[1].split()) if found else set()
    model = re.search(r"^model name\s*:\s*(.+)$", said, re.MULTILINE)
    return Processor(
        model[1].strip() if model else platform.processor() or "unknown",
        platform.machine(),
        usable_cores(),
        os.cpu_count() or 1,
        tuple(name for name, written in INSTRUCTIONS.items() if flags.intersection(written)),
    )


def memory(root: Path = Path("/")) -> Memory:
    """Describe the memory, and the container's limit."""
    said = _read(root / "proc/meminfo")

    def bytes_of(key: str) -> int | None:
        found = re.search(rf"^{key}:\s*(\d+) kB$", said, re.MULTILINE)
        return int(found[1]) * 1024 if found else None

    total = bytes_of("MemTotal")
    limits = [int(text) for name in _MEMORY_LIMITS if (text := _read(root / name).strip()).isdigit()]
    # Without a limit, version 1 gives the largest possible number.
    limit = min((each for each in limits if total is None or each < total), default=None)
    return Memory(total, bytes_of("MemAvailable"), limit)


def nvidia_driver(root: Path = Path("/")) -> str | None:
    """Return the release of NVIDIA's driver; None if none is loaded."""
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", _read(root / "proc/driver/nvidia/version"))
    return found[1] if found else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
