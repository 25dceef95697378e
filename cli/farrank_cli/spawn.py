"""Start `farrank serve` in a separate process, for demonstrations, benchmarks and tests."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from subprocess import PIPE, Popen
from typing import IO


class SpawnError(RuntimeError):
    """The server ended before it was healthy; its messages are on standard error."""


@dataclass(frozen=True, slots=True)
class SpawnedServer:
    """A running server. `metrics_url` and `http_url` are empty if it does not serve them."""

    address: str
    metrics_url: str
    http_url: str
    process: Popen[str]


@contextmanager
def spawned_server(arguments: Sequence[str], log: IO[bytes] | None = None) -> Iterator[SpawnedServer]:
    """Run `farrank serve` with these arguments for the block: healthy at the start, ended at the end.

    It takes free ports unless the arguments name some. Its log goes to `log`, else to standard error.
    Raises: SpawnError if the server cannot be started.
    """
    command = [sys.executable, "-m", "farrank_cli", "serve", "--port", "0", "--metrics-port", "0", *arguments]
    with Popen(command, stdout=PIPE, stderr=log, text=True) as process:
        try:
            yield _when_healthy(process)
        finally:
            process.terminate()
            process.wait()


def _when_healthy(process: Popen[str]) -> SpawnedServer:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("healthy "):
            fields = dict(field.split("=", 1) for field in line.split()[1:])
            metrics, http = ("" if fields[name] == "none" else fields[name] for name in ("metrics", "http"))
            return SpawnedServer(fields["grpc"], metrics, http, process)
    raise SpawnError(f"farrank serve ended with status {process.wait()} before it was healthy")
