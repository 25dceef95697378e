"""Run the benchmark: `make bench`, or `make bench BENCH_ARGS=--quick`."""

import argparse
import sys
import tempfile
from pathlib import Path

from farrank_bench.report import as_markdown
from farrank_bench.sections import Bench, Row, idle_latency, overload, throughput
from farrank_bench.workload import BenchCall, make_calls
from farrank_cli.spawn import spawned_server
from farrank_rankers.artifact import save_ranker
from farrank_rankers.untrained import new_ranker
from farrank_runtimes.torch_runtime import TorchRuntime

NOTES = (
    "all-MiniLM-L6-v2 as a cross-encoder with a random head (AvgP, disjoint chunks of 477 tokens), fp32; "
    "documents of 20 to 1,400 tokens from the embedded corpus; medians (smallest to largest)"
)


def main() -> None:
    """Run all sections and print the report."""
    parser = argparse.ArgumentParser(prog="farrank_bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer calls and repeats: a smoke test")
    parser.add_argument("--idle-only", action="store_true", help="measure the idle latency alone")
    parser.add_argument("--out", type=Path, help="write the report here, too")
    arguments = parser.parse_args()
    calls, repeats, overload_s = (32, 1, 15.0) if arguments.quick else (64, 5, 60.0)

    with tempfile.TemporaryDirectory() as folder:
        ranker = new_ranker("avgp", "embedded", seed=1)
        save_ranker(ranker, Path(folder))
        runtime = TorchRuntime(ranker, "fp32")
        runtime.warm_up()
        with spawned_server(["--ranker", f"bench={folder}", "--log-level", "warning"]) as server:
            bench = Bench(server, runtime, ranker.reader, make_calls(ranker.reader, calls, 4, 1), 16, repeats)
            sections: dict[str, list[Row]] = {}
            if not arguments.idle_only:
                sections["Throughput"], capacity_per_s = throughput(bench)
            small = BenchCall(bench.calls[0].query, (bench.calls[0].texts[0][:200],))
            sections["Idle latency"] = idle_latency(bench, small, 200)
            if not arguments.idle_only:
                sections["Overload"] = overload(bench, capacity_per_s, overload_s, timeout_s=10.0)

    flags = [flag for flag in ("--quick", "--idle-only") if flag in sys.argv]
    command = f"make bench BENCH_ARGS='{' '.join(flags)}'" if flags else "make bench"
    report = as_markdown(sections, command, NOTES)
    print(report)
    if arguments.out:
        arguments.out.write_text(report)


if __name__ == "__main__":
    main()
