"""The entry point: pick the subcommand, run it, turn every expected failure into one line.

A subcommand's module is imported only when it is called for, so that `farrank --help` needs neither torch nor
a server. A new command is a row of COMMANDS.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version

from farrank_cli import exit_codes
from farrank_cli.exit_codes import CommandError, missing_extra


@dataclass(frozen=True, slots=True)
class Command:
    """Where a subcommand lives, which extra it needs beyond the base install, and what it does."""

    module: str
    extra: str | None
    summary: str

    def load(self) -> "Loaded":
        """Import the command's module.

        Raises: ModuleNotFoundError if a package of its extra is missing.
        """
        module = import_module(self.module)
        return Loaded(module.configure, module.run)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A command's two functions: `configure(parser)` adds its flags, `run(args)` gives the exit code."""

    configure: Callable[..., None]
    run: Callable[..., int]


COMMANDS = {
    "serve": Command("farrank_cli.commands.serve", "server", "answer rerank calls over gRPC"),
    "index": Command("farrank_cli.commands.index", "lucene", "build an index for the server to search"),
    "rerank": Command("farrank_cli.commands.rerank", None, "order documents by a query"),
    "search": Command(
        "farrank_cli.commands.search", None, "search an index of a server and rerank what it finds"
    ),
    "rankers": Command(
        "farrank_cli.commands.rankers",
        None,
        "list a server's rankers, or the papers' models, or an artifact's exports; make a ranker",
    ),
    "export": Command(
        "farrank_cli.commands.export",
        "export",
        "write a ranker's graphs for ONNX Runtime, OpenVINO, TensorRT",
    ),
    "loadtest": Command("farrank_cli.commands.loadtest", "loadtest", "measure a server under load"),
    "completion": Command("farrank_cli.commands.completion", None, "print the shell's completion script"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `farrank` and say how it went; see `exit_codes`."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(given)
    except CommandError as error:
        print(f"farrank: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more at its end, which would fail again, with a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_codes.OUTPUT_CLOSED


def _run(given: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="farrank",
        description="Rerank whole long documents, and say which passage decided.",
        epilog=f"Exit codes:\n{_exit_code_lines()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"farrank {version('farrank')}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    parsers = {
        name: commands.add_parser(name, help=each.summary, description=_sentence(each.summary))
        for name, each in COMMANDS.items()
    }
    chosen = next((word for word in given if not word.startswith("-")), None)
    if chosen not in COMMANDS:
        parser.parse_args(given)
        raise AssertionError("argparse lets no unknown command through")
    if COMMANDS[chosen].extra is None:
        # These only call a server. What gRPC logs of a failed connection, they say in one line.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        loaded = COMMANDS[chosen].load()
        loaded.configure(parsers[chosen])
        return loaded.run(parser.parse_args(given))
    except ModuleNotFoundError as error:
        raise missing_extra(chosen, COMMANDS[chosen].extra, error) from error


def _sentence(summary: str) -> str:
    return f"{summary[0].upper()}{summary[1:]}."


def _exit_code_lines() -> str:
    return (exit_codes.__doc__ or "").partition("\n\n")[2].rstrip()
