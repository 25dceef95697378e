"""`farrank loadtest latency`: load a server in steps, and report how fast it answers at each."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from farrank_cli.exit_codes import DONE, INTERRUPTED, TRY_AGAIN, CommandError
from farrank_cli.numbers import at_least, listed, not_negative, positive
from farrank_cli.terminal import Progress
from farrank_cli.terminated import run_interruptible
from farrank_loadtest.latency.plan import FORM, Caps, Plan, parse_objective
from farrank_loadtest.latency.steps import Steps, climb, upwards
from farrank_loadtest.loops import SCHEDULES
from farrank_loadtest.workloads import Workload
from farrank_loadtest.workloads.recorded import read_candidates, read_jsonl
from farrank_loadtest.workloads.synthetic import FORMS, make_up, parse_lengths

if TYPE_CHECKING:
    from farrank_loadtest.latency.sweep import StepResult


def add_workload_flags(parser: argparse.ArgumentParser) -> None:
    """Add them, in groups by where the calls come from."""
    group = parser.add_argument_group("workload, one of")
    add = group.add_argument
    source = group.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--workload",
        type=Path,
        metavar="FILE",
        help='JSON lines of {"query": …, "documents": [{"id": …, "text": …}, …]}; '
        "ids without text are looked up in --collection",
    )
    source.add_argument(
        "--run", type=Path, metavar="FILE", help="a TREC run, with --queries and --collection"
    )
    source.add_argument("--synthetic", metavar="LENGTHS", help=f"made-up documents: {FORMS}")
    add("--queries", type=Path, metavar="FILE", help="id<TAB>text, or .jsonl")
    add(
        "--collection",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="JSON lines; may be repeated",
    )
    add("--depth", type=at_least(1), default=100, metavar="N", help="of a run (%(default)d)")
    add(
        "--calls", type=at_least(1), default=100, metavar="N", help="made up, then sent in turn (%(default)d)"
    )
    add("--documents", type=at_least(1), default=10, metavar="N", help="of a made-up call (%(default)d)")
    add("--query-tokens", type=at_least(1), default=8, metavar="N", help="of a made-up call (%(default)d)")


def read_workload(args: argparse.Namespace) -> Workload:
    """Read or make the calls.

    Raises: LoadtestError with file and line of what is wrong; CommandError for flags that do not go together.
    """
    if args.workload is not None:
        return read_jsonl(args.workload, args.collection)
    if args.run is not None:
        if args.queries is None or not args.collection:
            raise CommandError("--run: needs --queries and --collection")
        return read_candidates(args.run, args.queries, args.collection, args.depth)
    lengths = parse_lengths(args.synthetic)
    return make_up(args.calls, args.documents, lengths, args.query_tokens, seed=args.seed)


_CAPS = Caps()
# Rates have three digits: a climb by less would stand still.
_LEAST_FACTOR = 1.01


def add_load_flags(parser: argparse.ArgumentParser) -> None:
    """Add them, in groups."""
    load = parser.add_argument_group("load, one of")
    kind = load.add_mutually_exclusive_group(required=True)
    kind.add_argument("--rates", type=listed(positive), metavar="R,…", help="calls/s, open loop")
    kind.add_argument(
        "--climb", type=positive, metavar="R", help="from R calls/s up until the objective breaks, open loop"
    )
    kind.add_argument("--callers", type=listed(at_least(1)), metavar="N,…", help="callers, closed loop")
    load.add_argument(
        "--factor", type=positive, default=1.6, metavar="F", help="from rate to rate of a climb (%(default)g)"
    )
    load.add_argument(
        "--refine",
        type=at_least(0),
        default=3,
        metavar="N",
        help="rates between, where it broke (%(default)d)",
    )
    load.add_argument(
        "--arrivals", choices=SCHEDULES, default="poisson", help="of an open loop (%(default)s)"
    )

    each = parser.add_argument_group("each load")
    add = each.add_argument
    add("--objective", metavar="pN=TIME", help=f"{FORM}; the first load that breaks it is the last of a list")
    for name, reads, default, what in (
        ("warm-up-s", not_negative, 5.0, "sent and not counted"),
        ("duration-s", positive, 20.0, "measured"),
        ("timeout-s", positive, 10.0, "deadline of a call"),
    ):
        add(f"--{name}", type=reads, default=default, metavar="S", help=f"{what} (%(default)g)")
    add("--repeats", type=at_least(1), default=3, metavar="N", help="%(default)d")
    add("--seed", type=int, default=1, help="of arrivals and made-up texts (%(default)d)")

    caps = parser.add_argument_group("caps", "Limits that stop a mistyped command from flooding a server.")
    caps.add_argument(
        "--max-rate", type=positive, default=_CAPS.rate_per_s, metavar="R", help="calls/s (%(default)g)"
    )
    caps.add_argument(
        "--max-load-s", type=positive, default=_CAPS.seconds, metavar="S", help="of all loads (%(default)g)"
    )
    for name, most, what in (
        ("callers", _CAPS.callers, "at the same time"),
        ("in-flight", _CAPS.in_flight, "unanswered calls; those beyond are not sent and count as failed"),
        ("calls", _CAPS.calls, "calls of all loads"),
    ):
        caps.add_argument(
            f"--max-{name}", type=at_least(1), default=most, metavar="N", help=f"{what} (%(default)d)"
        )


def read_plan(args: argparse.Namespace) -> tuple[Plan, Steps]:
    """Make the plan, and the loads it is run at.

    Raises: LoadtestError if a value cannot be, or the caps forbid what is asked for; CommandError for flags
    that do not go together.
    """
    plan = Plan(
        loop="open" if args.callers is None else "closed",
        objective=None if args.objective is None else parse_objective(args.objective),
        arrivals=args.arrivals,
        warm_up_s=args.warm_up_s,
        duration_s=args.duration_s,
        repeats=args.repeats,
        timeout_s=args.timeout_s,
        seed=args.seed,
        ranker=args.ranker,
        caps=Caps(args.max_rate, args.max_callers, args.max_in_flight, args.max_calls, args.max_load_s),
    )
    if args.climb is not None:
        return plan, _climb(args, plan)
    amounts: list[float] = args.rates or args.callers
    # All of a list or none of it: better to learn now than after half of the time.
    plan.check(amounts)
    return plan, upwards(amounts)


def _climb(args: argparse.Namespace, plan: Plan) -> Steps:
    if plan.objective is None:
        raise CommandError("--climb: needs an --objective to break")
    if args.factor < _LEAST_FACTOR:
        raise CommandError(f"--factor {args.factor:g}: must be at least {_LEAST_FACTOR:g}")
    plan.check([args.climb])
    return climb(args.climb, args.factor, args.refine, plan.caps.rate_per_s)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the test's flags."""
    parser.add_argument(
        "--target",
        default="localhost:50051",
        metavar="ADDRESS",
        help="HOST:PORT (Farrank over gRPC), tei:URL, cohere:URL or jina:URL (%(default)s)",
    )
    parser.add_argument("--allow-remote", action="store_true", help="let the load leave this machine")
    parser.add_argument("--ranker", default="", metavar="NAME", help="what to ask for (the server's default)")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the report goes")
    add_workload_flags(parser)
    add_load_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, write the folder, say what was found.

    Raises: CommandError or LoadtestError, one line, if it cannot be done; ModuleNotFoundError if the loadtest
    extra is not installed.
    """
    from farrank_loadtest.kept_files import new_folder
    from farrank_loadtest.latency.latency_report import PAGE, RESULTS, describe_setting, verdict, write_folder
    from farrank_loadtest.latency.sweep import Sweep, probe, sweep
    from farrank_loadtest.targets.address import open_target

    plan, steps = read_plan(args)
    workload = read_workload(args)
    new_folder(args.out, RESULTS)
    setting = describe_setting(args.target, workload)
    progress = LoadProgress(plan)

    async def measure() -> Sweep:
        target = open_target(args.target, allow_remote=args.allow_remote)
        try:
            await probe(target, workload, plan)
            print(f"{args.target}: {workload.describe()}", file=sys.stderr, flush=True)
            return await sweep(target, workload, plan, steps, progress)
        finally:
            progress.end()
            await target.close()

    found = run_interruptible(measure())
    write_folder(args.out, found, setting)
    print(f"{verdict(found)}\n{args.out / PAGE}")
    if found.interrupted:
        return INTERRUPTED
    if found.target_gone:
        raise CommandError(f"{args.target}: {found.note}; {args.out} keeps what was measured", TRY_AGAIN)
    if not any(step.whole.latency.count for step in found.steps):
        why = f": {found.steps[-1].whole.failures}" if found.steps else ""
        raise CommandError(f"{args.target}: no call was answered{why}", TRY_AGAIN)
    return DONE


class LoadProgress:
    """Hears a sweep and shows it."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._progress = Progress("calls")

    def began(self, amount: float, repeat: int) -> None:
        """Show the load and the repeat."""
        load = self._plan.describe_load(amount)
        self._progress.end()
        self._progress = Progress(
            f"calls answered at {load} (repeat {repeat} of {self._plan.repeats})",
            lasts_s=self._plan.warm_up_s + self._plan.duration_s,
        )

    def counted(self, answered: int) -> None:
        """Show the count."""
        self._progress(answered)

    def finished(self, result: StepResult) -> None:
        """Leave a line for the load."""
        self._progress.end()
        print(summary(self._plan, result), file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the line clear."""
        self._progress.end()


def summary(plan: Plan, result: StepResult) -> str:
    """Tell one load in a line: what failed and why, then how fast the answered calls were."""
    from farrank_loadtest.latency.recorder import duration_text

    whole = result.whole
    words = [f"{plan.describe_load(result.amount)}: {whole.goodput_per_s:.4g} good/s"]
    if whole.failed:
        words.append(whole.failures)
    answered = whole.latency.count
    if answered:
        # A percentile that no answer lies beyond is but the slowest answer.
        known = [percent for percent in (50, 99, 99.9) if answered * (100 - percent) >= 100]
        times = [f"p{percent:g} {duration_text(whole.latency.percentile_s(percent))}" for percent in known]
        times.append(f"max {duration_text(whole.latency.max_s)}")
        words.append((f"the {answered:,} answered: " if whole.failed else "") + ", ".join(times))
    if result.generator_bound:
        words.append("generator-bound")
    elif result.held is not None:
        words.append("holds" if result.held else "breaks the objective")
    return ", ".join(words)
