"""`farrank loadtest`: measure a running server, Farrank or another; each kind of test has its own file."""

import argparse
from importlib import import_module
from types import ModuleType

from farrank_cli.exit_codes import REFUSED, TRY_AGAIN, CommandError
from farrank_cli.flags import add_commands
from farrank_loadtest.errors import LoadtestError, TargetFailed
from farrank_trec.errors import TrecError

TESTS = {
    "latency": "measure latency against load",
    "capacity": "compute the replicas for a load from a latency report",
    "efficiency": "plot cost and gain of the papers' rankers",
    "accuracy": "measure the accuracy of rankers as the papers do",
}
# Statuses after which a retry may help: the server is unreachable, overloaded or late.
_PASSING = frozenset(
    {"UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "unreachable", "connection lost", "timeout"}
    | {"HTTP 429", "HTTP 502", "HTTP 503", "HTTP 504"}
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the tests and their flags."""
    tests = add_commands(parser, TESTS, title="tests", dest="test", metavar="TEST", required=True)
    for name, test in tests.items():
        _module(name).configure(test)


def run(args: argparse.Namespace) -> int:
    """Run the chosen test.

    Raises: CommandError if it cannot be done; ModuleNotFoundError if the loadtest extra is not installed.
    """
    try:
        exit_code: int = _module(args.test).run(args)
    except TargetFailed as error:
        code = TRY_AGAIN if error.status in _PASSING else REFUSED
        raise CommandError(f"{args.target}: {error}", code) from error
    except (LoadtestError, TrecError) as error:
        raise CommandError(str(error)) from error
    return exit_code


def _module(test: str) -> ModuleType:
    """Import the test's module, which has a command's `configure(parser)` and `run(args)`."""
    return import_module(f"farrank_cli.commands.loadtest_{test}")
