"""Measure packed rankers on a CUDA device: `make bench-gpu`, or `make bench-gpu BENCH_ARGS=--quick`."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from farrank_bench.gpu.bench import FULL, QUICK, TINY, Bench
from farrank_bench.gpu.sections import SECTIONS, measure_sections, write_report
from farrank_cli.numbers import at_least
from farrank_runtimes.devices import choose_device
from farrank_runtimes.runtime import DeviceAbsent

MEASURED, SECTION_FAILED, NO_DEVICE = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sections asked for and print the report.

    Returns 0; 1 if a section failed, whose error its table holds; 2 if there is no device. An aim that was
    not reached is a result like any other.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given)
    extent = TINY if options.tiny else QUICK if options.quick else FULL
    if options.repeats is not None:
        extent = replace(extent, repeats=options.repeats)
    try:
        device = choose_device(options.device)
    except DeviceAbsent as error:
        print(f"bench-gpu: {error}", file=sys.stderr)
        return NO_DEVICE
    bench = Bench(device, extent, options.tiny)
    sections, failed = measure_sections(options.sections, bench)
    report = write_report(bench, sections, shlex.join(["python", "-m", "farrank_bench.gpu", *given]))
    print(report)
    if options.out:
        options.out.write_text(report, encoding="utf-8")
    for title in failed:
        print(f"bench-gpu: {title} failed", file=sys.stderr)
    return SECTION_FAILED if failed else MEASURED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="farrank_bench.gpu", description=__doc__)
    parser.add_argument(
        "--sections",
        nargs="+",
        choices=SECTIONS,
        default=list(SECTIONS),
        metavar="NAME",
        help=f"of {', '.join(SECTIONS)}; default all",
    )
    parser.add_argument("--repeats", type=at_least(1), help="runs of which the median counts, default 5")
    parser.add_argument("--quick", action="store_true", help="one short run of everything: a smoke test")
    parser.add_argument("--device", default="cuda:0", help="what to measure (%(default)s)")
    parser.add_argument(
        "--tiny",
        action="store_true",
        help="tiny models and documents: only to see that it runs, on a CPU too",
    )
    parser.add_argument("--out", type=Path, help="write the report here, too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
