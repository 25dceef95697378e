"""How many calls a second the load generator makes on one core, against a server that does nothing.

`python -m farrank_bench.loadgen` pins itself to one core and the server to another. A rate is sustained while
the 99th percentile of the generator's own lateness is within `farrank_loadtest.latency.sweep`'s bounds: the
same judgement by which a load test calls itself generator-bound.
"""

import argparse
import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from farrank.v1 import rerank_pb2
from farrank_loadtest.latency.plan import Caps, Plan
from farrank_loadtest.latency.recorder import duration_text
from farrank_loadtest.latency.steps import Listed
from farrank_loadtest.latency.sweep import Silent, StepResult, Sweep, probe, sweep
from farrank_loadtest.targets.address import open_target
from farrank_loadtest.workloads.synthetic import Shape, make_up, parse_lengths

DOCUMENTS = 4
TOKENS = 30
AIM_PER_S = 2000.0


class Printing(Silent):
    """Prints each rate when it is done."""

    def finished(self, result: StepResult) -> None:
        """Print how late the generator was, and how busy."""
        lag = result.whole.lag
        print(
            f"{result.amount:6,.0f} calls/s: answered {result.whole.goodput_per_s:8,.1f}/s, lag p50 "
            f"{duration_text(lag.percentile_s(50))}, p99 {duration_text(lag.percentile_s(99))}, thread busy "
            f"{result.whole.busy:.0%}{'; GENERATOR-BOUND' if result.generator_bound else ''}",
            flush=True,
        )


def main() -> int:
    """Measure, print, and give 0 if the aim is met."""
    parser = argparse.ArgumentParser(prog="farrank_bench.loadgen", description=__doc__)
    parser.add_argument("--rates", default="500,1000,2000,3000,4000", help="calls/s (%(default)s)")
    parser.add_argument("--duration-s", type=float, default=10.0, help="of each repeat (%(default)g)")
    parser.add_argument("--repeats", type=int, default=3, help="%(default)d")
    parser.add_argument("--serve-on", type=int, metavar="CORE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve_on is not None:
        os.sched_setaffinity(0, {arguments.serve_on})
        asyncio.run(answer_at_once(DOCUMENTS))
    rates = [float(rate) for rate in arguments.rates.split(",")]
    cores = sorted(os.sched_getaffinity(0))
    plan = Plan(
        loop="open",
        objective=None,
        warm_up_s=1.0,
        duration_s=arguments.duration_s,
        repeats=arguments.repeats,
        caps=Caps(rate_per_s=max(rates)),
    )
    with _noop_server(cores[-1]) as address:
        # Before the channel is made: its threads are born on this core, too.
        os.sched_setaffinity(0, {cores[0]})
        found = asyncio.run(_measure(address, plan, rates))
    sustained = max((step.amount for step in found.steps if not step.generator_bound), default=0.0)
    print(f"sustained on one core: {sustained:,.0f} calls/s of {DOCUMENTS} documents of {TOKENS} tokens")
    if len(cores) == 1:
        print("there is but one core: the server shared it, and the figures are too low")
    return 0 if sustained >= AIM_PER_S else 1


async def answer_at_once(documents: int) -> None:
    """Serve at a free port of the loopback, print it, and answer every call with the same bytes until killed.

    What is left to measure is the caller.
    """
    answer = rerank_pb2.RerankResponse(
        results=[rerank_pb2.Result(index=place, score=-float(place)) for place in range(documents)],
        timings=rerank_pb2.Timings(total_ns=1000, queue_ns=100, inference_ns=500),
    ).SerializeToString()

    async def rerank(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return answer

    # Neither side is parsed: no serializer means bytes.
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(rerank)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("farrank.v1.RerankService", {"Rerank": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


async def _measure(address: str, plan: Plan, rates: list[float]) -> Sweep:
    workload = make_up(Shape(200, DOCUMENTS, parse_lengths(f"constant:{TOKENS}"), 6), seed=1)
    target = open_target(address)
    try:
        await probe(target, workload, plan)
        return await sweep(target, workload, plan, Listed(rates), Printing())
    finally:
        await target.close()


@contextmanager
def _noop_server(core: int) -> Iterator[str]:
    command = [sys.executable, "-m", "farrank_bench.loadgen", "--serve-on", str(core)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout is None:
                raise AssertionError("the process was started with a pipe")
            yield f"127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


if __name__ == "__main__":
    sys.exit(main())
