"""The index of the reports of measurements: their dates and titles, and which later report replaces one."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from farrank_docs.records import title_of

FOLDER = Path(__file__).parents[1] / "benchmarks"


def markdown() -> str:
    """A row for each report, newest first."""
    rows = (
        f"| {name[:10]} | [{title_of(path)}]({path.relative_to(FOLDER).as_posix()}) | {replaced_by(path)} |"
        for name, path in sorted(dated(), reverse=True)
    )
    return "\n".join(("| date | report | replaced by |", "| --- | --- | --- |", *rows))


def dated() -> Iterator[tuple[str, Path]]:
    """Yield each report with its name, which begins with its date: a file, or a folder with its README."""
    for path in FOLDER.iterdir():
        if re.match(r"\d{4}-\d\d-\d\d-", path.name):
            yield path.name, path / "README.md" if path.is_dir() else path


def replaced_by(path: Path) -> str:
    """The link in a report's own line "Replaced by ...", from the folder of all reports, or nothing."""
    found = re.search(r"^Replaced by (\[.*?\])\((.*?)\)", path.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        return ""
    text, target = found.groups()
    return f"{text}({os.path.relpath(path.parent / target, FOLDER)})"
