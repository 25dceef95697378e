"""`farrank loadtest capacity`: compute the replicas for a load from the measured capacity of one replica."""

import argparse
import sys
from pathlib import Path

from farrank_cli.exit_codes import DONE, CommandError
from farrank_cli.flags import at_least, flag, positive

EPILOG = """\
examples:
  replicas for 500 calls a second, from a report in which one replica holds the objective at 60:
    farrank loadtest latency --workload calls.jsonl --climb 1 --objective p99=500ms --out results/latency
    farrank loadtest capacity results/latency --rate 500
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    meaning = "results.json of `farrank loadtest latency` against one replica, or its folder"
    parser.add_argument("report", metavar="REPORT", type=Path, help=meaning)
    load = parser.add_argument_group("load of all replicas, one of")
    kind = load.add_mutually_exclusive_group(required=True)
    flag(kind, "--rate R", "calls/s", positive)
    flag(kind, "--callers N", "calls at the same time", positive)
    meaning = "share of a replica's capacity to plan for (1 if the report has an objective, else 0.7)"
    flag(parser, "--utilisation U", meaning, positive)
    flag(parser, "--spare N", "additional replicas, for a rollout or a lost machine", at_least(0), 1)


def run(args: argparse.Namespace) -> int:
    """Print the number, and its derivation to standard error.

    Raises: CommandError for a utilisation above 1; LoadtestError if the report cannot be used;
    ModuleNotFoundError without the loadtest extra.
    """
    from farrank_loadtest.latency.capacity import read_capacity

    if args.utilisation is not None and args.utilisation > 1:
        raise CommandError(f"--utilisation {args.utilisation:g}: must be above 0 and at most 1")
    one = read_capacity(args.report)
    utilisation = one.utilisation if args.utilisation is None else args.utilisation
    if args.rate is not None:
        load, of_one, unit = args.rate, one.rate_per_s, "calls/s"
    else:
        load, of_one, unit = args.callers, one.in_flight, "calls at the same time"
    needed = one.replicas(load, of_one, utilisation)
    print(needed + args.spare)
    by = "at most" if one.objective is None else f"with {one.objective}"
    lines = [
        f"one replica: {of_one:.4g} {unit} {by}, planned at {utilisation:g} of that",
        f"{load:g} {unit}: {needed}, and {args.spare} spare",
        *(f"note: {note}" for note in one.notes),
    ]
    print("\n".join(lines), file=sys.stderr)
    return DONE
