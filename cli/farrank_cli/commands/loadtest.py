"""`farrank loadtest`: measure a running server, ours or another's; each kind of test is a file of its own."""

import argparse
from importlib import import_module

from farrank_cli.exit_codes import REFUSED, TRY_AGAIN, CommandError
from farrank_loadtest.errors import LoadtestError, TargetFailed
from farrank_trec.errors import TrecError

# A module each, with `configure(parser)` and `run(args) -> exit code`, and what it does.
TESTS = {
    "latency": ("farrank_cli.commands.loadtest_latency", "measure latency against load"),
    "efficiency": (
        "farrank_cli.commands.loadtest_efficiency",
        "draw what the papers' rankers cost and bring",
    ),
    "accuracy": ("farrank_cli.commands.loadtest_accuracy", "measure how well rankers rank, as the papers do"),
}
# Asking again may help: the server is not there, is full, or was too late.
_PASSING = frozenset(
    {"UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "unreachable", "connection lost", "timeout"}
    | {"HTTP 429", "HTTP 502", "HTTP 503", "HTTP 504"}
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the tests and their flags."""
    tests = parser.add_subparsers(title="tests", dest="test", metavar="TEST", required=True)
    for name, (module, summary) in TESTS.items():
        description = f"{summary[0].upper()}{summary[1:]}."
        import_module(module).configure(tests.add_parser(name, help=summary, description=description))


def run(args: argparse.Namespace) -> int:
    """Run the chosen test.

    Raises: CommandError if it cannot be done; ModuleNotFoundError if the loadtest extra is not installed.
    """
    try:
        exit_code: int = import_module(TESTS[args.test][0]).run(args)
    except TargetFailed as error:
        code = TRY_AGAIN if error.status in _PASSING else REFUSED
        raise CommandError(f"{args.target}: {error}", code) from error
    except (LoadtestError, TrecError) as error:
        raise CommandError(str(error)) from error
    return exit_code
