"""The report: rows of figures with their aims, and all that is needed to judge and to repeat them."""

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured, what came out, what is aimed at; `reached` is None where nothing can be said."""

    what: str
    measured: str
    aim: str = ""
    reached: bool | None = None


def spread(values: Sequence[float], form: str) -> str:
    """Write the median of the runs, the smallest and the largest in brackets.

    Raises: ValueError if there is no run.
    """
    if not values:
        raise ValueError("values is empty; a spread needs at least 1 run")
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def at_least(what: str, values: Sequence[float], limit: float, form: str = ".3f") -> Row:
    """Hold the median of the runs to a lower limit."""
    return Row(what, spread(values, form), f"at least {limit:g}", statistics.median(values) >= limit)


def below(what: str, values: Sequence[float], limit: float, form: str = ".3f") -> Row:
    """Hold the median of the runs to a limit that it must stay under."""
    return Row(what, spread(values, form), f"below {limit:g}", statistics.median(values) < limit)


def not_measured(what: str, why: str, aim: str = "") -> Row:
    """Say that a figure is missing, and why; an aim that nobody measured is not reached."""
    return Row(what, f"not measured: {' '.join(why.split())}", aim, False if aim else None)


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
