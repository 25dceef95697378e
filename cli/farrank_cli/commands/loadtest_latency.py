"""`farrank loadtest latency`: load a server in steps, and report its latency at each."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from farrank_cli.connection import read_key
from farrank_cli.depth_flag import DEPTH_MEANING, depth
from farrank_cli.exit_codes import DONE, INTERRUPTED, TRY_AGAIN, CommandError
from farrank_cli.flags import at_least, count, flag, flag_group, listed, not_negative, positive
from farrank_cli.terminal import Progress
from farrank_cli.terminated import run_interruptible
from farrank_loadtest.depths import Depth, check_depths, depth_text, is_adaptive
from farrank_loadtest.latency.plan import FORM, Caps, Plan, parse_objective
from farrank_loadtest.latency.steps import Steps, climb, upwards
from farrank_loadtest.loops import SCHEDULES
from farrank_loadtest.targets.address import PRIORITIES
from farrank_loadtest.workloads import Workload
from farrank_loadtest.workloads.recorded import read_candidates, read_jsonl
from farrank_loadtest.workloads.synthetic import FORMS, make_up, parse_lengths

if TYPE_CHECKING:
    from farrank_loadtest.latency.sweep import StepResult


_CAPS = Caps()
TARGET = "localhost:50051"
# Rates have three digits: a smaller factor would not change the rate.
_LEAST_FACTOR = 1.01


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the test's flags."""
    meaning = f"HOST:PORT (Farrank over gRPC), tei:URL, cohere:URL or jina:URL; may be repeated ({TARGET})"
    flag(parser, "--target ADDRESS", meaning, repeated=True)
    flag(parser, "--allow-remote", "allow targets that are not on this machine")
    flag(parser, "--api-key-file FILE", "file with the API key to send with every call", Path)
    flag(parser, "--ranker NAME", "ranker to use (the server's default); may be repeated", repeated=True)
    meaning = f"{DEPTH_MEANING}. A ranker that cannot be adaptive is measured once. May be repeated"
    flag(parser, "--depth DEPTH", meaning, depth, repeated=True, dest="depths")
    flag(parser, "--priority", "priority of all calls; only Farrank over gRPC has one", choices=PRIORITIES)
    flag(parser, "--out FOLDER", "folder for the report", Path, required=True)

    group = parser.add_argument_group("workload, one of")
    source = group.add_mutually_exclusive_group(required=True)
    meaning = (
        'JSON lines of {"query": …, "documents": [{"id": …, "text": …}, …]}; '
        "ids without text are looked up in --collection"
    )
    flag(source, "--workload FILE", meaning, Path)
    flag(source, "--run FILE", "a TREC run, with --queries and --collection", Path)
    flag(source, "--synthetic LENGTHS", f"generated documents: {FORMS}")
    flag(group, "--queries FILE", "id<TAB>text, or .jsonl", Path)
    flag(group, "--collection FILE", "JSON lines; may be repeated", Path, repeated=True)
    flag(group, "--k N", "documents of a query of the run", count, 100)
    flag(group, "--calls N", "generated calls, sent in turn", count, 100)
    flag(group, "--documents N", "documents of a generated call", count, 10)
    flag(group, "--query-tokens N", "query tokens of a generated call", count, 8)

    load = parser.add_argument_group("load, one of")
    kind = load.add_mutually_exclusive_group(required=True)
    flag(kind, "--rates R,…", "calls/s, open loop", listed(positive))
    flag(kind, "--climb R", "rates from R calls/s up until the objective breaks, open loop", positive)
    flag(kind, "--callers N,…", "callers, closed loop", listed(count))
    flag(load, "--factor F", "factor between the rates of a climb", positive, 1.6)
    flag(load, "--refine N", "rates to try between the last two rates of a climb", at_least(0), 3)
    flag(load, "--arrivals", "arrivals of an open loop", choices=SCHEDULES, default="poisson")

    add = flag_group(parser, "each load")
    add("--objective pN=TIME", f"{FORM}; the first load that breaks it is the last of a list")
    add("--warm-up-s S", "seconds of load before the measurement", not_negative, 5.0)
    add("--duration-s S", "seconds of the measurement", positive, 20.0)
    add("--timeout-s S", "deadline of a call", positive, 10.0)
    add("--repeats N", "measurements of each load", count, 3)
    add("--seed N", "seed of arrivals and generated texts", int, 1)

    add = flag_group(parser, "caps", "Limits that stop a mistyped command from flooding a server.")
    add("--max-rate R", "calls/s", positive, _CAPS.rate_per_s)
    add("--max-load-s S", "seconds of all loads", positive, _CAPS.seconds)
    add("--max-callers N", "callers at the same time", count, _CAPS.callers)
    meaning = "calls in flight; further ones are not sent and count as failed"
    add("--max-in-flight N", meaning, count, _CAPS.in_flight)
    add("--max-calls N", "calls of all loads", count, _CAPS.calls)


def read_workload(args: argparse.Namespace) -> Workload:
    """Read or generate the calls.

    Raises: LoadtestError naming file and line; CommandError for flags that do not fit together.
    """
    if args.workload is not None:
        return read_jsonl(args.workload, args.collection)
    if args.run is not None:
        if args.queries is None or not args.collection:
            raise CommandError("--run: needs --queries and --collection")
        return read_candidates(args.run, args.queries, args.collection, args.k)
    lengths = parse_lengths(args.synthetic)
    return make_up(args.calls, args.documents, lengths, args.query_tokens, seed=args.seed)


def read_plan(args: argparse.Namespace) -> tuple[Plan, Steps]:
    """Make the plan, and its loads.

    Raises: LoadtestError if a value is not allowed, or the caps forbid the loads; CommandError for flags that
    do not fit together.
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
        ranker=args.ranker[0] if args.ranker else "",
        caps=Caps(args.max_rate, args.max_callers, args.max_in_flight, args.max_calls, args.max_load_s),
    )
    if args.climb is not None:
        return plan, _climb(args, plan)
    amounts: list[float] = args.rates or args.callers
    # Check the whole list now rather than fail after half of it.
    plan.check(amounts)
    return plan, upwards(amounts)


def _climb(args: argparse.Namespace, plan: Plan) -> Steps:
    if plan.objective is None:
        raise CommandError("--climb: needs an --objective to break")
    if args.factor < _LEAST_FACTOR:
        raise CommandError(f"--factor {args.factor:g}: must be at least {_LEAST_FACTOR:g}")
    plan.check([args.climb])
    return climb(args.climb, args.factor, args.refine, plan.caps.rate_per_s)


def run(args: argparse.Namespace) -> int:
    """Measure, write a folder for each target, print the results.

    Several targets, rankers or depths are measured in turn at each load, so that other work of the machine
    affects them alike.
    Raises: CommandError or LoadtestError, one line, if it cannot be done; ModuleNotFoundError if the loadtest
    extra is not installed.
    """
    from farrank_loadtest.kept_files import new_folder
    from farrank_loadtest.latency.beside import compared, measure_in_turn
    from farrank_loadtest.latency.latency_report import PAGE, RESULTS, describe_setting, verdict, write_folder
    from farrank_loadtest.latency.sweep import Sweep, probe, sweep
    from farrank_loadtest.targets.address import open_target

    addresses: list[str] = args.target or [TARGET]
    plan, steps = read_plan(args)
    workload = read_workload(args)
    key = None if args.api_key_file is None else read_key(args.api_key_file)
    contenders = run_interruptible(find_contenders(args, addresses, key))
    if len(contenders) > 1 and args.climb is not None:
        raise CommandError(
            "--climb: takes one --target, --ranker and --depth; "
            "several are measured at --rates or with --callers"
        )
    folders = [args.out] if len(contenders) == 1 else _folders(args.out, contenders)
    for folder in folders:
        new_folder(folder, RESULTS)
    settings = [describe_setting(each.address, each.depth, workload) for each in contenders]
    progress = LoadProgress(plan)

    async def measure() -> list[Sweep]:
        targets = [
            (
                open_target(
                    each.address,
                    allow_remote=args.allow_remote,
                    api_key=key,
                    priority=args.priority,
                    depth=each.depth,
                ),
                replace(plan, ranker=each.ranker),
            )
            for each in contenders
        ]
        try:
            for each, (target, its) in zip(contenders, targets, strict=True):
                # Errors of this call name this target.
                args.target = each.address
                await probe(target, workload, its)
                print(f"{each}: {workload.describe()}", file=sys.stderr, flush=True)
            if len(targets) == 1:
                target, its = targets[0]
                return [await sweep(target, workload, its, steps, progress)]
            return await measure_in_turn(targets, workload, args.rates or args.callers, progress)
        finally:
            progress.end()
            for target, _ in targets:
                await target.close()

    sweeps = run_interruptible(measure())
    for each, folder, found, setting in zip(contenders, folders, sweeps, settings, strict=True):
        write_folder(folder, found, setting)
        name = f"{each}: " if len(contenders) > 1 else ""
        print(f"{name}{verdict(found)}\n{folder / PAGE}")
    for line in compared([str(each) for each in contenders], sweeps):
        print(line)
    for each, folder, found in zip(contenders, folders, sweeps, strict=True):
        if found.interrupted:
            return INTERRUPTED
        if found.target_gone:
            raise CommandError(f"{each}: {found.note}; {folder} keeps the measurements", TRY_AGAIN)
        if not any(step.whole.latency.count for step in found.steps):
            why = f": {found.steps[-1].whole.failures}" if found.steps else ""
            raise CommandError(f"{each}: no call was answered{why}", TRY_AGAIN)
    return DONE


@dataclass(frozen=True, slots=True)
class Contender:
    """One target with a ranker and a depth; an empty ranker and no depth leave the choice to the server."""

    address: str
    ranker: str
    depth: Depth | None

    def __str__(self) -> str:
        depth = "" if self.depth is None else depth_text(self.depth)
        return " ".join(filter(None, (self.address, self.ranker, depth)))


async def find_contenders(
    args: argparse.Namespace, addresses: Sequence[str], key: str | None
) -> list[Contender]:
    """Combine targets, rankers and depths; a ranker that cannot be adaptive is one contender, without depth.

    Raises: LoadtestError if a target has no depth, or one is given twice; TargetFailed if it does not answer.
    """
    from farrank_loadtest.targets.address import not_adaptive

    check_depths(args.depths)
    found = []
    rankers: Sequence[str] = args.ranker or [""]
    for address in addresses:
        reads_first: Collection[str] = ()
        if any(map(is_adaptive, args.depths)):
            args.target = address
            allowed = args.allow_remote
            reads_first = await not_adaptive(address, rankers, args.timeout_s, allowed, key)
        for ranker in rankers:
            depths = [None] if ranker in reads_first or not args.depths else args.depths
            found += [Contender(address, ranker, each) for each in depths]
    return found


def _folders(out: Path, contenders: Sequence[Contender]) -> list[Path]:
    """A folder for each contender, numbered: the same target may be given twice."""
    plain = [re.sub(r"[^A-Za-z0-9.]+", "-", str(each)).strip("-") for each in contenders]
    return [out / f"{number}-{name}" for number, name in enumerate(plain, 1)]


class LoadProgress(Progress):
    """Shows the progress of a sweep."""

    def __init__(self, plan: Plan) -> None:
        super().__init__("calls")
        self._plan = plan

    def began(self, amount: float, repeat: int) -> None:
        """Show the load and the repeat."""
        self.end()
        load = f"{self._plan.describe_load(amount)} (repeat {repeat} of {self._plan.repeats})"
        self.begin(f"calls answered at {load}", lasts_s=self._plan.end_s)

    def counted(self, answered: int) -> None:
        """Show the count."""
        self(answered)

    def finished(self, result: StepResult) -> None:
        """Print a line for the load."""
        self.end()
        print(summary(self._plan, result), file=sys.stderr, flush=True)


def summary(plan: Plan, result: StepResult) -> str:
    """Summarise one load in a line: failed calls and reasons, then the latency of answered calls."""
    from farrank_loadtest.latency.recorder import duration_text

    whole = result.whole
    words = [f"{plan.describe_load(result.amount)}: {whole.goodput_per_s:.4g} good/s"]
    if whole.failed:
        words.append(whole.failures)
    answered = whole.latency.count
    if answered:
        # A percentile with no answer beyond it would only repeat the slowest answer.
        known = [percent for percent in (50, 99, 99.9) if answered * (100 - percent) >= 100]
        times = [f"p{percent:g} {duration_text(whole.latency.percentile_s(percent))}" for percent in known]
        times.append(f"max {duration_text(whole.latency.max_s)}")
        words.append((f"the {answered:,} answered: " if whole.failed else "") + ", ".join(times))
    if result.generator_bound:
        words.append("generator-bound")
    elif result.held is not None:
        words.append("holds" if result.held else "breaks the objective")
    return ", ".join(words)
