"""The index of the decision records: their titles, and which later record replaces a part of one."""

import re
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "decisions"


def markdown() -> str:
    """A row for each record, newest first: its title, and its status if that says more than "accepted"."""
    paths = sorted(FOLDER.glob("[0-9]*.md"), reverse=True)
    rows = (f"| [{title_of(path)}]({path.name}) | {status_of(path)} |" for path in paths)
    return "\n".join(("| record | status |", "| --- | --- |", *rows))


def title_of(path: Path) -> str:
    """The first heading of a page."""
    return path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def status_of(path: Path) -> str:
    """The paragraph in which a record states its status, in one line; a record without one is accepted."""
    found = re.search(r"^Status: ((?:.+\n)+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return " ".join(found[1].split()).rstrip(".") if found else "accepted"
