"""How many calls a second the load generator makes on one core, against a server that does nothing.

It is pinned to one core and the server to another. A rate is sustained while the 99th percentile of the
generator's own lateness is within `farrank_loadtest.latency.sweep`'s bounds: the same judgement by which a
load test calls itself generator-bound.
"""

import asyncio
import os
from multiprocessing.connection import Connection

import grpc

from farrank.v1 import rerank_pb2
from farrank_bench.report import Row
from farrank_bench.rounds import child
from farrank_bench.served import offer
from farrank_loadtest.latency.recorder import duration_text
from farrank_loadtest.workloads.synthetic import Shape, make_up, parse_lengths

RATES_PER_S = (500.0, 1000.0, 2000.0, 3000.0, 4000.0)
WORKLOAD = Shape(calls=200, documents=4, lengths=parse_lengths("constant:30"), query_tokens=6)
AIM_PER_S = 2000.0


def generated_load(duration_s: float) -> list[Row]:
    """Offer one rate after the other to a server that answers at once."""
    cores = os.sched_getaffinity(0)
    with child("the server", answer_at_once, max(cores)) as server:
        address = f"127.0.0.1:{server.ask()}"
        # Before the channel is made: its threads are born on this core, too.
        os.sched_setaffinity(0, {min(cores)})
        try:
            steps = offer(address, make_up(WORKLOAD, seed=1).calls, RATES_PER_S, duration_s)
        finally:
            os.sched_setaffinity(0, cores)
    rows = []
    for step in steps:
        found, bound = step.whole, "; GENERATOR-BOUND" if step.generator_bound else ""
        p50, p99 = (duration_text(found.lag.percentile_s(percent)) for percent in (50, 99))
        told = (
            f"answered {found.goodput_per_s:,.1f}/s, lag p50 {p50}, p99 {p99}, thread busy {found.busy:.0%}"
        )
        rows.append(Row(f"{step.amount:,.0f} calls/s", told + bound))
    sustained = max((step.amount for step in steps if not step.generator_bound), default=0.0)
    what = f"calls/s of {WORKLOAD.documents} documents of 30 tokens, sustained on one core"
    if len(cores) == 1:
        what += ", which the server shared: too low"
    return [*rows, Row(what, f"{sustained:,.0f}", f"at least {AIM_PER_S:,.0f}", sustained >= AIM_PER_S)]


def answer_at_once(asked: Connection, core: int) -> None:
    """Serve at a free port of the loopback, tell it, and answer every call with the same bytes until killed.

    What is left to measure is the caller.
    """
    os.sched_setaffinity(0, {core})
    answer = rerank_pb2.RerankResponse(
        results=[rerank_pb2.Result(index=place, score=-float(place)) for place in range(WORKLOAD.documents)],
        timings=rerank_pb2.Timings(total_ns=1000, queue_ns=100, inference_ns=500),
    ).SerializeToString()

    async def rerank(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return answer

    async def serve() -> None:
        # Neither side is parsed: no serializer means bytes.
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(rerank)
        server = grpc.aio.server()
        service = grpc.method_handlers_generic_handler("farrank.v1.RerankService", {"Rerank": handler})
        server.add_generic_rpc_handlers((service,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        asked.recv()
        asked.send(port)
        await server.wait_for_termination()

    asyncio.run(serve())
