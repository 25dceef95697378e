"""Another caller during an attack: a process that checks health every 20 ms and reranks every 200 ms.

It writes one line of JSON for each call that ended: its kind, its status, its delay in milliseconds. It ends
when its standard input does, after all of its calls have.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECK_EVERY_S = 0.02
# The number of checks for each Rerank.
RERANK_EVERY = 10
# Longer than any stall so far. A call that takes longer counts as refused.
DEADLINE_S = 120.0


@dataclass(frozen=True)
class Probed:
    """One call of the probe. `ended_s` is monotonic."""

    kind: str
    status: str
    delay_ms: float
    ended_s: float


class Probe:
    """A running probe."""

    def __init__(self, process: "subprocess.Popen[str]", output: Path) -> None:
        self._process = process
        self._output = output

    def calls(self) -> list[Probed]:
        """Return all calls that have ended so far."""
        lines = self._output.read_text().splitlines()
        return [Probed(**json.loads(line)) for line in lines if line.endswith("}")]

    def end(self) -> list[Probed]:
        """Start no more calls, wait for those in flight, and return all."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
            assert self._process.wait(DEADLINE_S + 30) == 0, "the probe failed"
        return self.calls()


@contextmanager
def probing(port: int, key: str, output: Path) -> Iterator[Probe]:
    """Probe a server's gRPC endpoint. The first calls are answered before the block is entered."""
    command: Sequence[str] = (sys.executable, __file__, str(port), key, str(output))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n", "the probe found no server"
            yield Probe(process, output)
        finally:
            process.kill()


async def _probe(port: int, key: str, output: Path) -> None:
    import grpc
    from grpc_health.v1.health_pb2 import HealthCheckRequest

    from farrank.v1 import rerank_pb2 as pb

    documents = [pb.Document(id=name, text=f"the {name} and the sea") for name in ("river", "ship")]
    request = pb.RerankRequest(query="river", documents=documents)
    asked = {
        "check": ("/grpc.health.v1.Health/Check", HealthCheckRequest().SerializeToString()),
        "rerank": ("/farrank.v1.RerankService/Rerank", request.SerializeToString()),
    }
    running: set[asyncio.Task[None]] = set()
    options = (("grpc.enable_retries", 0),)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        with output.open("w", buffering=1) as file:

            async def call(kind: str) -> None:
                path, body = asked[kind]
                method: Any = channel.unary_unary(path)
                began_s = time.monotonic()
                status = "OK"
                try:
                    await method(body, metadata=(("authorization", f"Bearer {key}"),), timeout=DEADLINE_S)
                except grpc.aio.AioRpcError as error:
                    status = f"{error.code().name}: {error.details()}"
                ended_s = time.monotonic()
                probed = Probed(kind, status, (ended_s - began_s) * 1000, ended_s)
                file.write(json.dumps(probed.__dict__) + "\n")

            await call("check")
            await call("rerank")
            print("ready", flush=True)
            ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
            number = 0
            while not ended.done():
                running.add(asyncio.create_task(call("check")))
                if number % RERANK_EVERY == 0:
                    running.add(asyncio.create_task(call("rerank")))
                number += 1
                await asyncio.wait((ended,), timeout=CHECK_EVERY_S)
                running = {each for each in running if not each.done()}
            if running:
                await asyncio.wait(running)


if __name__ == "__main__":
    asyncio.run(_probe(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))
