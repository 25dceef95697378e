"""The flag `--depth`: how much of each document a call reads."""

import argparse
from typing import Literal

from farrank_cli.flags import count, positive
from farrank_client import AdaptiveDepth

DEPTH_MEANING = (
    "how much to read of each document: all, adaptive, or adaptive,BUDGET=N (the ranker's own). "
    "The BUDGET is chunks (of a document, in the mean), tokens or milliseconds (of the call)"
)


def depth(text: str) -> Literal["all", "adaptive"] | AdaptiveDepth:
    """Read a depth: `all`, `adaptive`, or `adaptive` with one budget.

    Raises: argparse.ArgumentTypeError naming the forms.
    """
    mode, _, budget = text.partition(",")
    name, _, value = budget.partition("=")
    match mode, name:
        case "all", "" if mode == text:
            return "all"
        case "adaptive", "" if mode == text:
            return "adaptive"
        case "adaptive", "chunks":
            return AdaptiveDepth(chunks=positive(value))
        case "adaptive", "tokens":
            return AdaptiveDepth(tokens=count(value))
        case "adaptive", "milliseconds":
            return AdaptiveDepth(milliseconds=count(value))
    raise argparse.ArgumentTypeError(
        f"{text!r} is not all, adaptive, or adaptive with one budget, as in adaptive,chunks=4; "
        "a budget is chunks, tokens or milliseconds"
    )
