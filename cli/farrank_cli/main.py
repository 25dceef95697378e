"""The entry point: choose the subcommand, run it, turn every expected failure into one line.

A subcommand's module is imported only if it is called, so that `farrank --help` needs neither torch nor a
server. A new command is a row of COMMANDS and a module of its name in `commands`.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from types import ModuleType
from typing import NamedTuple

from farrank_cli import exit_codes
from farrank_cli.exit_codes import CommandError, missing_extra
from farrank_cli.flags import add_commands


class Subcommand(NamedTuple):
    """A subcommand's summary, and the extras that it needs beyond the base install."""

    summary: str
    extras: tuple[str, ...] = ()


COMMANDS = {
    "serve": Subcommand("answer rerank calls over gRPC", ("server",)),
    "scale": Subcommand("deploy, show and take down replicas on a Ray cluster", ("server", "ray")),
    "doctor": Subcommand("show this machine's capabilities, and how to make rankers faster on it"),
    "reload": Subcommand("make a running server reload its rankers, indexes and keys"),
    "keys": Subcommand("make, list and revoke the API keys of a server's callers", ("server",)),
    "index": Subcommand("build an index for the server to search", ("lucene",)),
    "rerank": Subcommand("order documents by a query, or rerank a TREC run in this process"),
    "search": Subcommand("search an index of a server and rerank the results"),
    "mcp": Subcommand("give agents the search of a server, by the Model Context Protocol", ("mcp",)),
    "rankers": Subcommand(
        "list a server's rankers, or the papers' models, or an artifact's exports; make a ranker"
    ),
    "train": Subcommand("train rankers on queries, documents and judgements", ("train",)),
    "export": Subcommand("write a ranker's graphs for ONNX Runtime, OpenVINO, TensorRT", ("export",)),
    "data": Subcommand("make collections to train with; show where relevant passages lie", ("train",)),
    "loadtest": Subcommand("measure a server under load", ("loadtest",)),
    "completion": Subcommand("print the shell's completion script"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `farrank` and return its exit code; see `exit_codes`."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(given)
    except CommandError as error:
        print(f"farrank: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout again at exit, which would fail with a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_codes.OUTPUT_CLOSED


def _run(given: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="farrank",
        description="Rerank whole long documents, and show which passage decided.",
        epilog="Exit codes:\n" + (exit_codes.__doc__ or "").partition("\n\n")[2].rstrip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"farrank {version('farrank')}")
    summaries = {name: each.summary for name, each in COMMANDS.items()}
    parsers = add_commands(
        parser, summaries, title="commands", dest="command", metavar="COMMAND", required=True
    )
    chosen = next((word for word in given if not word.startswith("-")), None)
    if chosen not in COMMANDS:
        parser.parse_args(given)
        raise AssertionError("argparse lets no unknown command through")
    extras = COMMANDS[chosen].extras
    # gRPC reads this when it is imported. Its core writes a line for each compressed message and each failed
    # connection, without a rate; our own messages say the same.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        command = load(chosen)
        command.configure(parsers[chosen])
        exit_code: int = command.run(parser.parse_args(given))
    except ModuleNotFoundError as error:
        raise missing_extra(chosen, error, *extras) from error
    return exit_code


def load(command: str) -> ModuleType:
    """Import a command's module: `configure(parser)` adds the flags, `run(args)` returns the exit code.

    Raises: ModuleNotFoundError if a package of its extra is missing.
    """
    return import_module(f"farrank_cli.commands.{command}")
