"""Processes that torchrun started to train together, recognised without importing torch."""

import os


def is_first_process() -> bool:
    """Whether this process reports and writes the result for all of them."""
    return os.environ.get("RANK", "0") == "0"
