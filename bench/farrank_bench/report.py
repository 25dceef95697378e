"""The figures with all that is needed to judge and to repeat them."""

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from farrank_bench.rows import Row

PACKAGES = (
    "farrank",
    "torch",
    "transformers",
    "tokenizers",
    "grpcio",
    "sentence-transformers",
    "openvino",
    "onnxruntime",
)
_REACHED = {True: "yes", False: "no", None: ""}


def machine() -> str:
    """Name the processor, its cores and its wide instructions."""
    name, flags = platform.processor() or platform.machine(), ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
            elif key.strip() == "flags":
                flags = ", ".join(
                    f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f in value.split()
                )
    return f"{name}, {os.cpu_count()} cores ({flags})"


def heading(title: str, command: str, notes: str) -> list[str]:
    """Say what was measured where, with what, and how to measure it again."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)
    return [
        f"# {title}",
        "",
        f"- date: {datetime.now(UTC):%Y-%m-%d}",
        f"- machine: {machine()}; Python {platform.python_version()}",
        f"- versions: {versions}",
        f"- command: `{command}`",
        f"- {notes}",
    ]


def as_markdown(sections: Mapping[str, Sequence[Row]], command: str, notes: str) -> str:
    """Write the report of `make bench`."""
    lines = [*heading("The server measured", command, notes), *tables(sections)]
    return "\n".join(lines) + "\n"


def tables(sections: Mapping[str, Sequence[Row]]) -> list[str]:
    """Write each section's rows under its title."""
    lines = []
    for title, rows in sections.items():
        lines += ["", f"## {title}", "", "| what | measured | aim | reached |", "| --- | --- | --- | --- |"]
        lines += [f"| {row.what} | {row.measured} | {row.aim} | {_REACHED[row.reached]} |" for row in rows]
    return lines
