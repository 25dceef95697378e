"""A gRPC server that answers every rerank at once with the same bytes: what is left to measure is the caller.

Run by `farrank_bench.loadgen` in a process of its own.
"""

import argparse
import asyncio
import os

import grpc

from farrank.v1 import rerank_pb2


async def serve(documents: int) -> None:
    """Listen at a free port of the loopback, print it, and answer until killed."""
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


def main() -> None:
    """Serve on the core that the caller chose."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, required=True)
    parser.add_argument("--core", type=int, required=True)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {arguments.core})
    asyncio.run(serve(arguments.documents))


if __name__ == "__main__":
    main()
