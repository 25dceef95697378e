"""The project's files that a call runs, with their threads."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any

from support.documentation import ROOT

# The folder of each package.
PACKAGES = {path.parent.name: str(path.parent.parent) for path in ROOT.glob("*/farrank_*/__init__.py")}


class Recorder:
    """While it is on, it records each file whose functions are entered, and the thread that entered it first.

    Files are named as in docs/explanation/architecture.md: PACKAGE/FILE.py. They are in the order of their
    first entries.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.entered: dict[str, str] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if self.is_on and event == "call" and (name := name_of(frame.f_code.co_filename)):
            self.entered.setdefault(name, threading.current_thread().name)


@cache
def name_of(path: str) -> str:
    """Return PACKAGE/FILE.py of a file of the project; empty for other files."""
    for package, folder in PACKAGES.items():
        if path.startswith(f"{folder}/{package}/"):
            return path.removeprefix(f"{folder}/")
    return ""


@contextmanager
def recording() -> Iterator[Recorder]:
    """Make a recorder for this thread and for all threads that start in the block."""
    recorder = Recorder()
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    try:
        yield recorder
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
