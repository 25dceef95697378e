"""Processes that torchrun started to train together; known without torch."""

import os


def is_first_process() -> bool:
    """Whether this process tells and writes what all of them made."""
    return os.environ.get("RANK", "0") == "0"
