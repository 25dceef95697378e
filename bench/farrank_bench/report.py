"""The report: rows of figures with their aims, and all that is needed to judge and to repeat them."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from farrank_loadtest.machine import describe_machine, installed_versions
from farrank_loadtest.markdown import markdown_table


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
HEADS = ("what", "measured", "aim", "reached")
_REACHED = {True: "yes", False: "no", None: ""}


def heading(
    title: str,
    command: str,
    notes: str,
    *,
    packages: Sequence[str] = PACKAGES,
    warnings: Sequence[str] = (),
    device: str = "",
) -> str:
    """Say what was measured where, with what, and how to measure it again."""
    versions = ", ".join(f"{name} {version}" for name, version in installed_versions(packages).items())
    facts = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "device": device,
        "machine": describe_machine(),
        "versions": versions,
        "command": f"`{command}`",
    }
    lines = [f"# {title}", ""]
    for warning in warnings:
        lines += [warning, ""]
    lines += [f"- {name}: {fact}" for name, fact in facts.items() if fact]
    lines.append(f"- {notes}")
    return "\n".join(lines) + "\n"


def tables(sections: Mapping[str, Sequence[Row]]) -> str:
    """Write each section's rows under its title."""
    lines = []
    for title, rows in sections.items():
        cells = [(row.what, row.measured, row.aim, _REACHED[row.reached]) for row in rows]
        lines += ["", f"## {title}", "", markdown_table(HEADS, cells, aligned=False)]
    return "\n".join(lines) + "\n"
