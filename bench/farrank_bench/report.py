"""Sections that are measured one after the other, and their report, with all facts needed to repeat them."""

import argparse
import shlex
import statistics
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from farrank_loadtest.kept_files import markdown_table
from farrank_loadtest.machine import describe_machine, installed_versions


@dataclass(frozen=True, slots=True)
class Row:
    """A quantity, its measured value, its aim, and whether the aim was reached (None without an aim)."""

    what: str
    measured: str
    aim: str = ""
    reached: bool | None = None


def spread(values: Sequence[float], form: str) -> str:
    """Write the median of the runs, with the smallest and the largest in brackets.

    Raises: ValueError if there is no run.
    """
    if not values:
        raise ValueError("values is empty; a spread needs at least 1 run")
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def at_least(
    what: str, values: Sequence[float], limit: float | None, form: str = ".3f", *, missing: str = ""
) -> Row:
    """Compare the median of the runs with a lower limit, if any. `missing` says why there are no runs."""
    aim = "" if limit is None else f"at least {limit:g}"
    if missing:
        return not_measured(what, missing, aim)
    return Row(what, spread(values, form), aim, None if limit is None else statistics.median(values) >= limit)


def below(what: str, values: Sequence[float], limit: float, form: str = ".3f") -> Row:
    """Compare the median of the runs with an upper limit."""
    return Row(what, spread(values, form), f"below {limit:g}", statistics.median(values) < limit)


def not_measured(what: str, why: str, aim: str = "") -> Row:
    """Report that a figure is missing, and why. An aim without a measurement counts as not reached."""
    return Row(what, f"not measured: {' '.join(why.split())}", aim, False if aim else None)


Measure = Callable[[], list[Row]]
# Rows by title.
Sections = dict[str, list[Row]]


class PartlyFailed(RuntimeError):
    """A part of a section could not be measured. `rows` has the measured rows, and names the missing ones."""

    def __init__(self, message: str, rows: Sequence[Row]) -> None:
        super().__init__(message)
        self.rows = list(rows)


def measure_sections(parts: Iterable[tuple[str, Measure]], found: Sections) -> list[str]:
    """Measure section after section into `found`, and print each at once. Returns the titles that failed."""
    failed: list[str] = []
    for title, measure in parts:
        print(title, flush=True)
        try:
            found[title] = measure()
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            rows = error.rows if isinstance(error, PartlyFailed) else []
            found[title] = [not_measured("all or some", f"{type(error).__name__}: {error}"), *rows]
            failed.append(title)
        print("\n".join(f"  {row.what}: {row.measured}" for row in found[title]), flush=True)
    return failed


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
INTERRUPTED = 130
HEADS = ("what", "measured", "aim", "reached")
_REACHED = {True: "yes", False: "no", None: ""}


def describe_versions(packages: Sequence[str]) -> str:
    """Name the packages with their versions."""
    return ", ".join(f"{name} {version}" for name, version in installed_versions(packages).items())


@dataclass(frozen=True, slots=True)
class Heading:
    """The head of a report. `warnings` say why the figures count for nothing, and remove the aims.

    `one_table` is the title of a single table in which each section is one row. `machine` and `versions` are
    those of an earlier measurement; empty ones are this process's.
    """

    title: str
    notes: str
    packages: Sequence[str] = PACKAGES
    warnings: Sequence[str] = ()
    device: str = ""
    one_table: str = ""
    machine: str = ""
    versions: str = ""

    def page(self, command: str, sections: Mapping[str, Sequence[Row]]) -> str:
        """Write the machine, versions and command, and each section's rows under its title."""
        facts = {
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "device": self.device,
            "machine": self.machine or describe_machine(),
            "versions": self.versions or describe_versions(self.packages),
            "command": f"`{command}`",
        }
        lines = [f"# {self.title}", ""]
        for warning in self.warnings:
            lines += [warning, ""]
        lines += [f"- {name}: {fact}" for name, fact in facts.items() if fact]
        lines.append(f"- {self.notes}")
        if self.one_table:
            sections = {self.one_table: [replace(rows[0], what=title) for title, rows in sections.items()]}
        for title, rows in sections.items():
            shown = [replace(row, aim="", reached=None) if self.warnings else row for row in rows]
            cells = [(row.what, row.measured, row.aim, _REACHED[row.reached]) for row in shown]
            lines += ["", f"## {title}", "", markdown_table(HEADS, cells, aligned=False)]
        return "\n".join(lines) + "\n"


class Command:
    """A benchmark's command line: its options, and `--out`."""

    def __init__(self, program: str, about: str | None) -> None:
        self.options = argparse.ArgumentParser(prog=program, description=about)
        self.options.add_argument("--out", type=Path, help="write the report here, too")

    def sections(self, names: Iterable[str], default: Sequence[str]) -> None:
        """Add `--sections`."""
        self.options.add_argument(
            "--sections",
            nargs="+",
            choices=list(names),
            default=list(default),
            metavar="NAME",
            help=f"any of {', '.join(names)}; default {' '.join(default)}",
        )

    def parse(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        """Parse the arguments, by default the process's."""
        self._given = list(sys.argv[1:] if arguments is None else arguments)
        given = self.options.parse_args(self._given)
        names = getattr(given, "sections", [])
        if len(set(names)) < len(names):
            self.options.error("argument --sections: names a section twice")
        return given

    def report(self, heading: Heading, parts: Iterable[tuple[str, Measure]], out: Path | None) -> int:
        """Measure, print the report and write it.

        Returns 0; 1 if a section failed, with its error in its table; 130 after Ctrl-C, with the finished
        sections. A missed aim is a result like any other.
        """
        sections: Sections = {}
        failed: list[str] | None = None
        try:
            failed = measure_sections(parts, sections)
        except KeyboardInterrupt:
            heading = replace(heading, notes=f"{heading.notes}; INTERRUPTED: sections are missing")
        page = heading.page(shlex.join(["python", "-m", self.options.prog, *self._given]), sections)
        print(page)
        if out:
            out.write_text(page, encoding="utf-8")
        if failed is None:
            print(f"{self.options.prog}: interrupted", file=sys.stderr)
            return INTERRUPTED
        for title in failed:
            print(f"{self.options.prog}: {title} failed", file=sys.stderr)
        return 1 if failed else 0
