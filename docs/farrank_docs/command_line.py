"""The help of every command, from its parser."""

import argparse
import os
from collections.abc import Iterator

from farrank_cli.main import COMMANDS, load

WIDTH = "100"


def markdown() -> str:
    """A section for each command and each command below it, with the text of `--help`."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = WIDTH  # argparse wraps at this width
    try:
        return "\n".join(line for name in COMMANDS for line in _command(name))
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def _command(name: str) -> Iterator[str]:
    summary, extras = COMMANDS[name]
    description = f"{summary[:1].upper()}{summary[1:]}."
    parser = argparse.ArgumentParser(prog=f"farrank {name}", description=description)
    load(name).configure(parser)
    yield from _help(parser, 2)
    if extras:
        yield from (f"It needs `pip install 'farrank[{','.join(extras)}]'`.", "")


def _help(parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    yield from (f"{'#' * level} {parser.prog}", "", "```text", parser.format_help().rstrip(), "```", "")
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in dict.fromkeys(action.choices.values()):
                yield from _help(below, level + 1)
