"""What a measurement was made on, in a line: figures of different machines do not compare."""

import os
import platform
from pathlib import Path


def describe_machine() -> str:
    """Name the processor, how many cores this process may use, the system and the interpreter."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = "1 core" if usable == 1 else f"{usable} cores"
    return f"{_processor()}, {cores}, {platform.system()}, Python {platform.python_version()}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
