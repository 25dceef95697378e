"""`farrank loadtest latency`: load a server in steps, and report how fast it answers at each."""

import argparse
import sys
from pathlib import Path

from farrank_cli.exit_codes import DONE, INTERRUPTED, TRY_AGAIN, CommandError
from farrank_cli.load_flags import add_load_flags, read_plan
from farrank_cli.terminated import run_interruptible
from farrank_cli.workload_flags import add_workload_flags, read_workload


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
    from farrank_cli.load_progress import LoadProgress
    from farrank_loadtest.latency.report.folder import PAGE, prepare_folder, write_folder
    from farrank_loadtest.latency.report.page import verdict
    from farrank_loadtest.latency.report.rows import describe_setting
    from farrank_loadtest.latency.result import Sweep
    from farrank_loadtest.latency.sweep import probe, sweep
    from farrank_loadtest.targets.open import open_target

    plan, steps = read_plan(args)
    workload = read_workload(args)
    prepare_folder(args.out)
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
    try:
        write_folder(args.out, found, setting)
    except OSError as error:
        raise CommandError(f"{error.filename or args.out}: {error.strerror}") from error
    print(f"{verdict(found)}\n{args.out / PAGE}")
    if found.interrupted:
        return INTERRUPTED
    if found.target_gone:
        raise CommandError(f"{args.target}: {found.note}; {args.out} keeps what was measured", TRY_AGAIN)
    if not any(step.whole.latency.count for step in found.steps):
        raise CommandError(f"{args.target}: no call was answered; {args.out} says how each ended", TRY_AGAIN)
    return DONE
